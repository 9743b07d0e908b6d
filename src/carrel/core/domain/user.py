"""People."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a user may do beyond their own work."""

    USER = "user"
    #: Sees and cancels the jobs of the accounts that they are a member of.
    MANAGER = "manager"
    #: Sees and cancels everybody's jobs, drains and reserves nodes; reads nobody's files or logs, manages no users.
    OPERATOR = "operator"
    ADMIN = "admin"


class UserState(StrEnum):
    """Whether a user may do anything now."""

    ACTIVE = "active"
    #: Nothing of theirs is accepted or starts, until an administrator lets them go on.
    SUSPENDED = "suspended"
    #: They are gone, and their records stay.
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person. Identified by `subject` alone, which never changes; `name` is for display."""

    subject: str
    name: str
    role: Role = Role.USER
    #: The research account that use is charged to when a task names none.
    account: str = "default"
    #: Research accounts that the groups of their sign-in provider make them a member of, beside those that name them.
    member_of: frozenset[str] = frozenset()
    state: UserState = UserState.ACTIVE
    #: Why, by whom (a subject) and since when (Unix seconds) they are in that state.
    state_reason: str = ""
    state_by: str = ""
    state_since: float | None = None
    #: When all their tokens were revoked last (Unix seconds): those of jobs that were submitted before are void, too.
    revoked_at: float | None = None
    #: Who they are at a sign-in provider (its address and its name for them, with a space between); in lists of users only.
    linked_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call: a user, or one job of a user. `carrel.core.policy.access` says what they may."""

    user: User
    #: The job whose token was shown, or None for the user in person.
    job_id: int | None = None
    #: Its attempt.
    attempt: int | None = None
    #: Accounts that they are a member of.
    accounts: frozenset[str] = frozenset()
    #: What the token that was shown is good for (`carrel.core.policy.access.SCOPES`).
    scopes: frozenset[str] = frozenset({"all"})
    #: The number of that token; None for a job's.
    token_id: int | None = None
    #: Unix seconds at which it ends by itself; None: it does not.
    until: float | None = None
    #: The only account that the token's jobs are charged to; None: any of the user's.
    account: str | None = None


def directory_name(subject: str) -> str:
    """The name of a user's own directory: their subject where it is a plain name, else its characters in hexadecimal."""
    plain = subject.isascii() and subject.replace("-", "").replace("_", "").replace(".", "").isalnum() and subject[0].isalnum()
    return subject if plain and len(subject) <= 64 else "x" + subject.encode().hex()[:128]
