"""How a browser signs in: a one-time ticket in a link, then a session cookie. All of it lives in memory only.

Tickets and session ids are kept as digests, so that a dump of the memory's tables opens nothing; behind each is the access
token of its user, which is asked again at every request: a token that is revoked ends its sessions with it.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie

from carrel.core.domain.ports import Clock

#: Name of the cookie; over https with the prefix that keeps it to this host name and to https (RFC 6265bis).
COOKIE = "carrel_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
NewSecret = Callable[[], str]


def _new_secret() -> str:
    return secrets.token_urlsafe(32)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    token: str = field(repr=False)
    #: Unix seconds.
    until: float
    #: What a form of the session must carry; "" for tickets.
    form: str = field(default="", repr=False)
    #: Whether the token was made for this session, and ends with it.
    own: bool = False


class _Store:
    """Secrets that end by themselves; the oldest are dropped when there are too many."""

    def __init__(self, clock: Clock, new_secret: NewSecret, lifetime: float, most: int) -> None:
        self._clock = clock
        self._new_secret = new_secret
        self._lifetime = lifetime
        self._most = most
        self._guard = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def put(self, token: str, form: str = "", *, own: bool = False) -> str:
        secret = self._new_secret()
        with self._guard:
            self._entries[_digest(secret)] = _Entry(token=token, until=self._clock() + self._lifetime, form=form, own=own)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)
        return secret

    def get(self, secret: str) -> _Entry | None:
        with self._guard:
            return self._valid(self._entries.get(_digest(secret)))

    def take(self, secret: str) -> _Entry | None:
        with self._guard:
            return self._valid(self._entries.pop(_digest(secret), None))

    def _valid(self, entry: _Entry | None) -> _Entry | None:
        return entry if entry is not None and self._clock() < entry.until else None


class Tickets:
    """One-time sign-in links. The composition root issues one and prints ``<url>/login?ticket=<ticket>``."""

    def __init__(self, clock: Clock, *, new_secret: NewSecret = _new_secret, lifetime: float = 600.0) -> None:
        self._store = _Store(clock, new_secret, lifetime, most=1000)

    def issue(self, token: str) -> str:
        """A ticket that signs in whom the access token belongs to, once, within ten minutes."""
        return self._store.put(token)

    def redeem(self, ticket: str) -> str | None:
        """The access token behind the ticket, which is void from now on; None when it is unknown, used or too old."""
        entry = self._store.take(ticket)
        return None if entry is None else entry.token


class Sessions:
    """Browsers that are signed in."""

    def __init__(self, clock: Clock, *, new_secret: NewSecret = _new_secret, lifetime: float = 12 * 3600.0) -> None:
        self._new_secret = new_secret
        self.lifetime = lifetime
        self._store = _Store(clock, new_secret, lifetime, most=10_000)

    def start(self, token: str, *, own: bool = False) -> str:
        """A new session of the token's user; returns what goes into the cookie. `own`: the token is the session's alone."""
        return self._store.put(token, form=self._new_secret(), own=own)

    def token(self, session: str) -> str | None:
        """The access token behind the session, or None when it is over."""
        entry = self._store.get(session)
        return None if entry is None else entry.token

    def form_secret(self, session: str) -> str | None:
        """What every form of the session carries, so that no other page can send it."""
        entry = self._store.get(session)
        return None if entry is None else entry.form

    def end(self, session: str) -> str | None:
        """The session is over; returns its token if that was made for it, and is to be revoked."""
        entry = self._store.take(session)
        return entry.token if entry is not None and entry.own else None


def session_in(cookie: str) -> str | None:
    """The session id in a Cookie header, or None."""
    if COOKIE not in cookie:
        return None
    try:
        read = SimpleCookie(cookie)
    except CookieError:
        return None
    found = read.get(SECURE_COOKIE) or read.get(COOKIE)
    return found.value if found is not None else None
