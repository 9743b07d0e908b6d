"""The answer for a program that gets nothing."""

from __future__ import annotations

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.user import User


class Refused(CarrelError):
    """A request that gets no token; `error` is the word of RFC 6749 (5.2) or RFC 8628 (3.5) for it."""

    def __init__(self, error: str, message: str, *, user: User | None = None, rule: str = "") -> None:
        """`user` is who it was about, and `rule` why, both for the audit log; only "" is no news for it."""
        super().__init__(message)
        self.error = error
        self.user = user
        self.rule = rule
