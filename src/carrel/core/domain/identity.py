"""Who users are at a sign-in provider."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.user import Role


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
