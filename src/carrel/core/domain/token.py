"""Access tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as the lab knows it: everything but the token itself. Times are Unix seconds."""

    id: int
    #: Whose it is.
    subject: str
    #: What it is called, for people.
    name: str
    #: What it is good for (`carrel.core.policy.access.SCOPES`).
    scopes: tuple[str, ...]
    created_at: float
    #: The subject of who made it.
    created_by: str
    #: The number of the token that was shown for this one, which ends with it: a browser's.
    parent: int | None = None
    #: The only account that its jobs are charged to; None: any of its owner's.
    account: str | None = None
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None
    #: The subject of who revoked it.
    revoked_by: str | None = None

    def valid(self, now: float) -> bool:
        """True while it opens anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
