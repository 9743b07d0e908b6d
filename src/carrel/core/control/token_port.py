"""What control needs remembered of access tokens; `carrel.lab.store` implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from carrel.core.domain.token import Token
from carrel.core.domain.user import User


class TokenStore(Protocol):
    """Access tokens. Each method is one transaction."""

    def add(self, new: Token, *, now: float) -> Token:
        """Remember a token."""
        ...

    def find(self, digest: str) -> tuple[Token, User] | None:
        """The token with this digest and whose it is, valid or not; or None."""
        ...

    def known(self, digest: str) -> tuple[Token, User] | None:
        """What `find` would say now, where that is known without waiting for anything; else None."""
        ...

    def get(self, token_id: int) -> tuple[Token, User] | None:
        """The token with this number and whose it is, valid or not; or None."""
        ...

    def list(self, subject: str | None) -> Sequence[Token]:
        """All tokens of a user, or of everybody, the oldest first."""
        ...

    def revoke(self, *, by: str, now: float, token_id: int | None = None, subject: str | None = None) -> int:
        """Revoke one token and those that were made by showing it, or all of a user; return how many that were.

        With all of a user those of their jobs are void, too (`User.revoked_at`).
        """
        ...

    def replace(self, new: Token, *, by: str, now: float, token_id: int | None = None) -> Token | None:
        """Revoke one token (default: all of the new one's owner) and remember the new one, in one step.

        With all tokens goes the password. None, and nothing has changed, when that one token is revoked already.
        """
        ...

    def used(self, moments: Mapping[int, float]) -> None:
        """Remember when tokens were used last, by their numbers."""
        ...
