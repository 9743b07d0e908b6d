"""How a browser signs in: a one-time ticket in a link, then a cookie.

Tickets are in memory, as digests. Behind a cookie is a token of the browser's own, which follows from the cookie and the lab's
key: the lab keeps neither of them, a restart signs nobody out, and a cookie does not tell its token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie

from carrel.core.control.tokens import BROWSER_LIFETIME, TOKEN_PREFIX
from carrel.core.domain.ports import Clock

#: What the name of the cookie begins with. The lab's id follows, since labs on one host name, on ports of their own, share its
#: cookies (RFC 6265, 8.5).
_COOKIE = "carrel_session"
#: Tickets that wait at most; the oldest are dropped.
_MOST = 1000
_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


class Tickets:
    """One-time sign-in links, ``<url>/login?ticket=<ticket>``. Thread-safe."""

    def __init__(self, clock: Clock, *, new_secret: Callable[[], str] = _new_secret, lifetime: float = 600.0) -> None:
        self._clock = clock
        self._new_secret = new_secret
        self._lifetime = lifetime
        self._guard = threading.Lock()
        #: Number of a token, and Unix seconds until which the ticket is good.
        self._entries: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def issue(self, token_id: int) -> str:
        """A ticket that signs in whom the token with this number belongs to, once, within ten minutes."""
        ticket = self._new_secret()
        with self._guard:
            self._entries[_digest(ticket)] = (token_id, self._clock() + self._lifetime)
            while len(self._entries) > _MOST:
                self._entries.popitem(last=False)
        return ticket

    def redeem(self, ticket: str) -> int | None:
        """The token's number, and the ticket is void from now on; None when it is unknown, used or too old."""
        with self._guard:
            token_id, until = self._entries.pop(_digest(ticket), (None, 0.0))
        return token_id if self._clock() < until else None


class Sessions:
    """Browsers that are signed in, by what is in their cookies."""

    #: Seconds for which a browser keeps its cookie.
    lifetime = BROWSER_LIFETIME

    def __init__(self) -> None:
        self._key = b""
        self._lab = ""

    def use(self, key: bytes, lab_id: str) -> None:
        """Derive tokens with this key of the lab that has this id."""
        self._key, self._lab = key, lab_id

    def cookie(self, *, secure: bool) -> str:
        """The name of the cookie; over https with the prefix that keeps it to this host name and to https (RFC 6265bis)."""
        return f"{'__Host-' if secure else ''}{_COOKIE}_{self._lab}"

    def session_in(self, cookie: str) -> str | None:
        """The session id in a Cookie header, or None."""
        if _COOKIE not in cookie:
            return None
        try:
            read = SimpleCookie(cookie)
        except CookieError:
            return None
        found = read.get(self.cookie(secure=True)) or read.get(self.cookie(secure=False))
        return found.value if found is not None else None

    def new(self) -> tuple[str, str]:
        """What goes into a cookie, and the token that is to be made for it."""
        session = _new_secret()
        return session, self._token(session)

    def token(self, session: str) -> str | None:
        """The token behind the session, valid or not; None for what is no session."""
        return self._token(session) if _SECRET.fullmatch(session) else None

    def form_secret(self, session: str) -> str | None:
        """What every form of the session carries, so that no other page can send it; None for what is no session."""
        return self._derived("form", session) if _SECRET.fullmatch(session) else None

    def _token(self, session: str) -> str:
        return TOKEN_PREFIX + self._derived("token", session)

    def _derived(self, what: str, session: str) -> str:
        mac = hmac.new(self._key, f"carrel browser {what}:{session}".encode(), hashlib.sha256).digest()
        return urlsafe_b64encode(mac).decode().rstrip("=")
