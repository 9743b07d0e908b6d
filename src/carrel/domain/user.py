"""People."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a user may do beyond their own work."""

    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A person. Identified by `subject` alone, which never changes; `name` is for display."""

    subject: str
    name: str
    role: Role = Role.USER
    #: The research account that use is charged to when a task names none.
    account: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a call: a user, or one job of a user with no more than that job needs."""

    user: User
    #: The job whose token was shown, or None for the user in person.
    job_id: int | None = None

    @property
    def is_admin(self) -> bool:
        """True for an administrator in person; a job of theirs is not one."""
        return self.user.role is Role.ADMIN and self.job_id is None

    def may_see(self, owner: str) -> bool:
        """True when things of `owner` exist for this caller."""
        return self.is_admin or self.user.subject == owner


def directory_name(subject: str) -> str:
    """The name of a user's own directory: their subject where it is a plain name, else its characters in hexadecimal."""
    plain = subject.isascii() and subject.replace("-", "").replace("_", "").replace(".", "").isalnum() and subject[0].isalnum()
    return subject if plain and len(subject) <= 64 else "x" + subject.encode().hex()[:128]
