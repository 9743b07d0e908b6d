"""Tickets: a link that lets one browser in, once."""

from __future__ import annotations

import hashlib
import posixpath
import secrets
import threading
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from carrel.core.domain.errors import Invalid
from carrel.core.domain.ports import Clock

#: Seconds for which a ticket is good.
LIFETIME = 60.0
#: What is ours on a session's host name: nothing below it reaches the session.
OURS = "/_carrel"
#: Where a ticket is exchanged.
ENTRANCE = f"{OURS}/enter"
#: Tickets that wait at most; nobody needs more than one at a time.
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class _Ticket:
    label: str
    token_id: int
    path: str
    expires: float


class TicketIssuer:
    """Issues tickets and takes them. In memory alone: after a restart people ask for another one. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}

    def issue(self, label: str, token_id: int, path: str) -> str:
        """A path with a ticket of 256 random bits; it leads to `path` of the same host afterwards.

        Who comes by it is let in for as long as the token with that number is good.
        """
        if not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable():
            raise Invalid(f'"{path[:200]}" is not a path of a session.', remedy="Name one that begins with one slash.")
        ticket, now = secrets.token_urlsafe(32), self._clock()
        with self._guard:
            for digest in [digest for digest, known in self._tickets.items() if known.expires <= now]:
                del self._tickets[digest]
            while len(self._tickets) >= _MOST:
                del self._tickets[next(iter(self._tickets))]
            self._tickets[_digest(ticket)] = _Ticket(label, token_id, path, now + LIFETIME)
        return f"{ENTRANCE}?{urlencode({'ticket': ticket})}"

    def take(self, label: str, ticket: str) -> tuple[int, str] | None:
        """Token and path of a ticket for this session, which is worth nothing from now on; None when it is not good."""
        with self._guard:
            known = self._tickets.pop(_digest(ticket), None)
        if known is None or known.label != label or known.expires <= self._clock():
            return None
        return known.token_id, known.path


def lab_path(file: str) -> str:
    """Where JupyterLab shows `file`, a path relative to the session's files; "" is the lab itself."""
    if not file:
        return "/lab"
    plain = posixpath.normpath(file)
    if plain.startswith(("/", "..")) or "\0" in file or "\\" in file:
        raise Invalid(f'"{file[:200]}" is not a file of the session.', remedy="Name one relative to the session's files.")
    return f"/lab/tree/{quote(plain)}"


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
