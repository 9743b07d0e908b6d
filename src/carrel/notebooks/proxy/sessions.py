"""What the proxy needs to know about sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from carrel.core.domain.user import Caller
from carrel.notebooks.address import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session, as the proxy sees it."""

    job_id: int
    attempt: int
    #: Subject of its owner, and what people call them.
    owner: str
    owner_name: str
    #: Where its notebook server takes connections; None while that is not known.
    address: Address | None
    #: The job's own token.
    token: str
    #: True when the server takes connections.
    ready: bool
    #: True when it will never answer again.
    over: bool
    #: How it is, for the owner.
    message: str


class Sessions(Protocol):
    """All sessions of the lab. Methods are called from the event loop's worker threads, and are quick.

    `carrel.lab.server.sessions.RunningSessions` is one, and has the promises.
    """

    def find(self, label: str) -> Session | None: ...  # noqa: D102
    def guest(self, token_id: int) -> Caller: ...  # noqa: D102
    def connected(self, job_id: int, attempt: int, change: int) -> None: ...  # noqa: D102
    def used(self, job_id: int, attempt: int) -> None: ...  # noqa: D102
