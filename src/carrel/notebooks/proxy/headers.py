"""What of a request a session sees, and what of its answer a browser sees.

Hop-by-hop headers: RFC 9110, 7.6.1. Cookies: RFC 6265. Fetch Metadata: https://www.w3.org/TR/fetch-metadata/.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from starlette.datastructures import Headers

Raw = tuple[bytes, bytes]

#: Cookies whose names begin like this, with or without a prefix of RFC 6265bis, are ours: what runs in a session never sees them.
OUR_COOKIES = "carrel"
_COOKIE_PREFIXES = ("__host-", "__secure-")

#: For the next hop only; nothing of this is passed on in either direction.
_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
#: Credentials of the lab's, what only a proxy may say, and what is between us and the browser.
_KEPT_OUT = frozenset({b"authorization", b"forwarded", b"via", b"x-real-ip", b"cookie", b"accept-encoding", b"expect"})
_KEPT_OUT_PREFIXES = (b"x-carrel-", b"x-forwarded-", b"sec-websocket-")
#: What a session must not say for its whole origin, or says of itself: our own server speaks to the browser.
_KEPT_IN = frozenset(
    {b"clear-site-data", b"strict-transport-security", b"alt-svc", b"server", b"date", b"via"}
    | {b"cross-origin-opener-policy", b"cross-origin-resource-policy", b"origin-agent-cluster", b"referrer-policy"}
)
_KEPT_IN_PREFIXES = (b"access-control-", b"x-carrel-")
#: Every answer from a session's origin: nobody else frames, opens or embeds it, or learns its address (HTML, "Origin isolation").
ISOLATION: Sequence[Raw] = (
    # Beside the policies that Jupyter sets itself; a browser keeps to all of them.
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"origin-agent-cluster", b"?1"),
    (b"referrer-policy", b"same-origin"),
)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def is_ours(cookie: str) -> bool:
    """Whether the cookie with this name belongs to the lab."""
    name = cookie.strip().lower()
    for prefix in _COOKIE_PREFIXES:
        name = name.removeprefix(prefix)
    return name.startswith(OUR_COOKIES)


def request_headers(raw: Iterable[Raw], identity: Mapping[str, str]) -> list[Raw]:
    """What of a browser's headers the session sees, with who it is."""
    raw = [(name.lower(), value) for name, value in raw]
    named = _named_by_connection(raw)
    kept = [
        (name, value)
        for name, value in raw
        if name not in _HOP and name not in _KEPT_OUT and name not in named and not name.startswith(_KEPT_OUT_PREFIXES)
    ]
    cookies = _foreign_cookies(value.decode("latin-1") for name, value in raw if name == b"cookie")
    if cookies:
        kept.append((b"cookie", cookies.encode("latin-1")))
    # The session is next door: compressing for the way there only costs time.
    kept.append((b"accept-encoding", b"identity"))
    kept += [(name.lower().encode(), value.encode()) for name, value in identity.items()]
    return kept


def response_headers(raw: Iterable[Raw]) -> list[Raw]:
    """What of a session's headers the browser sees: no cookie for other host names, no cookie named like ours."""
    raw = [(name.lower(), value) for name, value in raw]
    named = _named_by_connection(raw)
    kept = []
    for name, value in raw:
        if name in _HOP or name in named or name in _KEPT_IN or name.startswith(_KEPT_IN_PREFIXES):
            continue
        if name == b"set-cookie":
            if is_ours(value.partition(b"=")[0].decode("latin-1")):
                continue
            value = b";".join(part for part in value.split(b";") if part.partition(b"=")[0].strip().lower() != b"domain")
        kept.append((name, value))
    return [*kept, *ISOLATION]


def from_this_origin(headers: Headers, method: str, *, websocket: bool = False) -> bool:
    """Whether the session's own pages may have caused this request, or a person who typed or followed a link.

    Reading is refused too when the browser says that another site embeds it. What changes something, and every websocket, must
    name the session's own origin.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    own = _is_own(origin, headers.get("host", "")) if origin is not None else None
    if websocket:
        return own is True and site in (None, "same-origin")
    if method not in _SAFE:
        return own is not False and site in (None, "same-origin", "none") and (own is True or site is not None)
    if own is False:
        return False
    if site in (None, "same-origin", "none"):
        return True
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_own(origin: str, host: str) -> bool:
    # Whether it is http or https is not compared: behind a proxy that ends TLS only the browser knows, and Fetch Metadata tell.
    scheme, separator, name = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return bool(separator) and port is not None and name.removesuffix(port) == host.lower().removesuffix(port)


def _foreign_cookies(headers: Iterable[str]) -> str:
    parts = (part.strip() for header in headers for part in header.split(";"))
    return "; ".join(part for part in parts if part and not is_ours(part.partition("=")[0]))


def _named_by_connection(raw: Iterable[Raw]) -> set[bytes]:
    return {word.strip().lower() for name, value in raw if name == b"connection" for word in value.split(b",")}
