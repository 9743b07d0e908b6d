"""Research accounts, and what they are entitled to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Work is charged to an account; accounts have shares among those beside them, and users have shares inside."""

    name: str
    #: The account that this one is a part of, or "" for the lab itself.
    parent: str = ""
    shares: int = 1
    #: Shares by user; one who is not named has one. Empty: everybody may charge the account.
    users: Mapping[str, int] = field(default_factory=dict)

    def admits(self, user: str) -> bool:
        """True when `user` may charge it."""
        return not self.users or user in self.users


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountUsage:
    """What one user has used on one account, in charged seconds that fade away with time."""

    account: str
    user: str
    #: Charged seconds (of one GPU, unless the lab counts otherwise) as of the moment that was asked about.
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one user of one account stands."""

    account: str
    user: str
    #: The factor of the weight of fair share, 0 to 1: 1 where nothing was used, and half for each share that was; less where the
    #: account, with all its users, stands behind others.
    factor: float
    #: Part of the lab that is theirs by shares, and part of what was used that they used; both from 0 to 1.
    share: float
    used: float
    seconds: float
