"""Who is who between the lab, a browser and a session.

Three keys, all derived, none of them stored: the host name of a session, the cookie of a browser that was let in (both from the
lab's secret), and the token with which the proxy shows a request's owner to the notebook server (from the job's own token, which
both sides have). Tokens are JWTs (RFC 7519), signed with HMAC-SHA256, each for one audience.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

#: Header in which the proxy shows to the notebook server who asks.
HEADER = "X-Carrel-Identity"
#: Where a session that waits for its JupyterHub takes what that has for it.
HUB_PATH = "/carrel/hub"
#: Seconds for which such a token is good.
LIFETIME = 60
#: Seconds by which the clocks of two machines may differ.
_LEEWAY = 30
_LABEL = re.compile(r"s([1-9][0-9]{0,17})-([0-9a-f]{12})")


def session_label(secret: bytes, job_id: int, attempt: int) -> str:
    """The first part of a session's host name: it cannot be guessed, and is another one for each attempt."""
    mac = hmac.new(secret, f"carrel-session-host:{job_id}:{attempt}".encode(), hashlib.sha256).hexdigest()
    return f"s{job_id}-{mac[:12]}"


def read_session_label(label: str) -> int | None:
    """The job that a label names, or None when it is no label. Whether it is the right one is for `session_label` to say."""
    match = _LABEL.fullmatch(label)
    return int(match[1]) if match else None


def headers(token: str, *, job_id: int, attempt: int, subject: str, now: float, name: str = "") -> Mapping[str, str]:
    """The header with which a request reaches the notebook server of a session; `token` is the job's own."""
    claims = {
        "aud": _audience(job_id, attempt),
        "sub": subject,
        "name": name or subject,
        "iat": int(now),
        "exp": int(now) + LIFETIME,
    }
    return {HEADER: jwt.encode({"alg": "HS256"}, claims, _identity_key(token))}


def read_identity(text: str, token: str, *, job_id: int, attempt: int, now: float) -> tuple[str, str] | None:
    """Subject and name that a header's value shows, or None when it was not made for this session, or is too old."""
    claims = _claims(text, _identity_key(token), audience=_audience(job_id, attempt), now=now)
    return (str(claims["sub"]), str(claims["name"])) if claims is not None and "name" in claims else None


def cookie_value(secret: bytes, label: str, token_id: int) -> str:
    """What a browser keeps that was let in with the token of that number: worth nothing once that, or the session, is over."""
    return jwt.encode({"alg": "HS256"}, {"aud": f"carrel-browser:{label}", "sub": str(token_id)}, _cookie_key(secret))


def read_cookie(secret: bytes, label: str, text: str) -> int | None:
    """The number of the token with which this cookie's browser was let in, or None."""
    claims = _claims(text, _cookie_key(secret), audience=f"carrel-browser:{label}", now=None)
    number = "" if claims is None else claims["sub"]
    return int(number) if number.isascii() and number.isdigit() else None


def _claims(text: str, key: OctKey, *, audience: str, now: float | None) -> Mapping[str, Any] | None:
    if not text.isascii() or len(text) > 4096:
        return None
    try:
        claims = jwt.decode(text, key, algorithms=["HS256"]).claims
    except (JoseError, ValueError):
        return None
    if claims.get("aud") != audience or not isinstance(claims.get("sub"), str):
        return None
    if now is not None:
        expires = claims.get("exp")
        if not isinstance(expires, int) or not now - _LEEWAY <= expires <= now + LIFETIME + _LEEWAY:
            return None
    return claims


def _audience(job_id: int, attempt: int) -> str:
    return f"carrel-session:{job_id}.{attempt}"


def _identity_key(token: str) -> OctKey:
    return OctKey.import_key(hmac.new(token.encode(), b"carrel session identity", hashlib.sha256).digest())


def _cookie_key(secret: bytes) -> OctKey:
    return OctKey.import_key(hmac.new(secret, b"carrel session cookie", hashlib.sha256).digest())
