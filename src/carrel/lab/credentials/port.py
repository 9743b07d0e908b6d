"""What is remembered of passwords and of people of a sign-in provider; `carrel.lab.store` implements it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.domain.user import Role


class CredentialStore(Protocol):
    """Passwords, as hashes. Each method is one transaction.

    What stores something asks in that transaction whether the token by which it was asked for is still valid, and its owner
    still a user: a reset or a removal in between wins. They return False then, and nothing has changed.
    """

    def password(self, subject: str) -> str | None:
        """The hash of the user's password, or None."""
        ...

    def redeem(self, token_id: int, subject: str, *, hash: str, now: float) -> bool:
        """Revoke an invitation and store the password that was chosen with it, in the place of an earlier one."""
        ...

    def change_password(self, token_id: int, subject: str, *, old: str | None, new: str | None, now: float) -> bool:
        """Put one hash in the place of another; None stands for no password."""
        ...

    def rehash(self, subject: str, *, old: str, new: str) -> bool:
        """The same password under better parameters, unless it was changed meanwhile."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a user of the lab is at the sign-in provider (OpenID Connect Core 1.0, 5.7). Times are Unix seconds."""

    subject: str
    issuer: str
    #: The provider's name for them, which it gives to nobody else.
    sub: str
    linked_at: float
    last_used_at: float | None = None
    #: The role that their groups gave them; None: theirs was given by hand, or is `Role.USER`.
    role: Role | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the groups of a user have changed."""

    #: Their role before and now, and their accounts by groups.
    role_before: Role
    role: Role
    accounts_before: frozenset[str]
    accounts: frozenset[str]
    #: Why the role is not what the groups say ("": it is).
    kept: str = ""

    @property
    def words(self) -> str:
        """What changed, for the logs; "": nothing."""
        parts = [f"role {self.role_before} -> {self.role}"] if self.role is not self.role_before else []
        parts += [f"account +{name}" for name in sorted(self.accounts - self.accounts_before)]
        parts += [f"account -{name}" for name in sorted(self.accounts_before - self.accounts)]
        return ", ".join(parts)


class IdentityStore(Protocol):
    """Who is who at the provider. Each method is one transaction."""

    def find(self, issuer: str, sub: str) -> Identity | None:
        """The user who is linked to this person, or None."""
        ...

    def of(self, subject: str) -> Identity | None:
        """Whom the user is linked to, or None."""
        ...

    def link(self, subject: str, issuer: str, sub: str, *, now: float) -> bool:
        """Link an active user. False, and nothing has changed, when one of the two is linked already, or the user is none.

        A link to another issuer is replaced: a lab has one provider.
        """
        ...

    def give(self, identity: Identity, role: Role | None, accounts: Collection[str], *, now: float) -> Given | None:
        """The user has what their groups stand for: `role`, or none, and exactly these accounts. None: the link is gone.

        A role that was given by hand stays as it is. The last administrator keeps theirs.
        """
        ...

    def take_back(self, *, but: str | None) -> Sequence[str]:
        """Take all roles and accounts that came from groups, but for links to the issuer `but`; return whose."""
        ...
