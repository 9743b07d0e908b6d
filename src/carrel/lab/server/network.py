"""How the lab faces the network: its address, TLS, names, and what people are warned of."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


def check_network(values: Mapping[str, Any]) -> None:
    """Raise `Invalid` for settings that do not go together."""
    if bool(values["tls_certificate"]) != bool(values["tls_key"]):
        raise Invalid("tls_certificate and tls_key go together.", remedy="Give both files, or none.")
    if values["tls_own"] and values["tls_certificate"]:
        raise Invalid(
            "tls_own and tls_certificate are two ways of TLS.", remedy="Keep one: the certificate, if others vouch for it."
        )
    address = values["public_url"]
    if address is not None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise Invalid(f'public_url is "{address}".', remedy='Write it like "https://gpus.example.org".')
    if values["tls_certificate"] and (address is None or not address.startswith("https://")):
        raise Invalid(
            "A lab with tls_certificate wants a public_url that begins with https://.",
            remedy="Say by which name people reach it: the one in its certificate.",
        )
    for name in ("public_url", "slurm_url"):
        if values["tls_own"] and (values[name] or "").startswith("http://"):
            raise Invalid(f'{name} is "{values[name]}", and the lab offers TLS (tls_own).', remedy="Begin it with https://.")
    secret = values["proxy_secret"]
    if secret is not None and not re.fullmatch(r"[!-~]{16,200}", secret):
        raise Invalid(
            f"proxy_secret has {len(secret)} characters, or one that a header cannot have.",
            remedy="Give it 16 to 200 letters and digits that nobody guesses: openssl rand -hex 32.",
        )


class BehindProxy:
    """Takes a request's client and scheme from the proxy that sends the lab's `proxy_secret`, and from nobody else.

    An address is no proof of a proxy: jobs on its machine have the same one. Of `X-Forwarded-For` the last address counts, which
    the proxy itself has seen; those before it are the client's words.
    """

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app = app
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request as it came to the proxy."""
        if scope["type"] in ("http", "websocket"):
            said = dict(scope["headers"])  # of several of one name, the last
            if hmac.compare_digest(said.get(b"x-carrel-proxy", b""), self._secret):
                scope = {**scope, **_forwarded(scope["type"], said)}
        await self._app(scope, receive, send)


def _forwarded(kind: str, said: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    proto, address = (
        said.get(name, b"").decode("latin-1").rpartition(",")[2].strip() for name in (b"x-forwarded-proto", b"x-forwarded-for")
    )
    found: dict[str, Any] = {}
    if proto in ("http", "https"):
        found["scheme"] = proto if kind == "http" else proto.replace("http", "ws")
    with suppress(ValueError):
        found["client"] = (str(ipaddress.ip_address(address)), 0)
    return found


def certified(public_url: str | None, session_host: str, *others: str | None) -> list[str]:
    """The names for the lab's certificate: those that its settings tell people, sessions' own among them (RFC 6125, 6.4.3)."""
    hosts = [urlsplit(address).hostname for address in (public_url, *others) if address]
    parent = session_host.partition(".")[2]
    return [host for host in (*hosts, f"*.{parent}" if parent else None) if host and host not in ("0.0.0.0", "::")]


def names(public_url: str | None, *others: str | None) -> frozenset[str]:
    """By which names the lab answers: none in particular where its `public_url` is not known."""
    if public_url is None:
        return frozenset()
    hosts = [urlsplit(address).hostname for address in (public_url, *others) if address]
    return frozenset(host for host in hosts if host)


def loopback(host: str) -> bool:
    """True when nobody on another machine reaches what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def warnings(host: str, *, tls: bool, public_url: str | None = None, proxy: bool = False) -> list[str]:
    """Warnings about the lab's address, for the person who starts it; `proxy`: it knows the one in front of it."""
    if not tls and not proxy and (public_url or "").startswith("https:"):
        return [
            f"The lab does not know the proxy that offers {public_url}: it sees everybody at the proxy's address, without TLS.",
            "Set proxy_secret, and have the proxy send it (docs/settings.md).",
        ]
    if tls or loopback(host):
        return []
    return [
        f"It listens on {host} without TLS: others on the network can read tokens, code and results, and use them.",
        "Set tls_own, or tls_certificate, tls_key and public_url (docs/settings.md), or listen on 127.0.0.1 behind a TLS proxy.",
    ]
