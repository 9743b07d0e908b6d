"""What control needs remembered of users, as a protocol; `carrel.lab.store` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carrel.core.domain.user import User, UserState


class UserStore(Protocol):
    """Users, and who may use which snapshot."""

    def add(self, user: User, *, now: float) -> None:
        """Add a user; raises `Conflict` when the subject exists."""
        ...

    def get(self, subject: str) -> User | None:
        """The user, or None."""
        ...

    def known(self, subject: str) -> User | None:
        """The same where that takes no waiting, or None."""
        ...

    def list(self) -> Sequence[User]:
        """All users by subject."""
        ...

    def set_state(self, subject: str, state: UserState, *, reason: str, by: str, now: float) -> bool:
        """The user is in that state from now on. False, and nothing has changed, when no administrator would be left."""
        ...

    def may_use_snapshot(self, subject: str, digest: str) -> bool:
        """True when the user has uploaded this code."""
        ...

    def add_snapshot(self, subject: str, digest: str, *, now: float, size: int = 0) -> None:
        """Remember that the user has uploaded this code, and its bytes on the disk."""
        ...
