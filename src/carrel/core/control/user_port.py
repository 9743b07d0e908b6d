"""What control needs remembered of users, as a protocol; `carrel.lab.store` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from carrel.core.domain.user import User, UserState


class UserStore(Protocol):
    """Users, and who may use which snapshot. `carrel.lab.store.people.UserTable` is one, and has the promises."""

    def add(self, user: User, *, now: float) -> None: ...  # noqa: D102
    def get(self, subject: str) -> User | None: ...  # noqa: D102
    def known(self, subject: str) -> User | None: ...  # noqa: D102
    def list(self) -> Sequence[User]: ...  # noqa: D102
    def set_state(self, subject: str, state: UserState, *, reason: str, by: str, now: float) -> bool: ...  # noqa: D102
    def may_use_snapshot(self, subject: str, digest: str) -> bool: ...  # noqa: D102
    def add_snapshot(self, subject: str, digest: str, *, now: float, size: int = 0) -> None: ...  # noqa: D102
