"""Access tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from carrel.core.domain.noun import Moment, derived, private


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as the lab knows it: everything but the token itself."""

    #: 0: it is not kept yet.
    id: int = 0
    #: What is kept of the token itself.
    digest: str = private(default="", repr=False)
    #: The subject of whose it is.
    user: str
    #: What it is called, for people.
    name: str
    #: What it is good for (`carrel.core.policy.access.SCOPES`).
    scopes: tuple[str, ...]
    created_at: Moment = 0.0
    #: The subject of who made it.
    created_by: str
    #: The number of the token that was shown for this one, which ends with it: a browser's.
    parent: int | None = private(default=None)
    #: The only account that its jobs are charged to; None: any of its owner's.
    account: str | None = None
    #: None: it has no end.
    expires_at: Moment | None = None
    #: To the minute.
    last_used_at: Moment | None = None
    revoked_at: Moment | None = None
    #: The subject of who revoked it.
    revoked_by: str | None = None
    state: Literal["valid", "expired", "revoked"] = derived(default="valid")

    def valid(self, now: float) -> bool:
        """True while it opens anything."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeToken:
    """A token that was just made; it is shown this once."""

    token: str
    about: Token
    #: Where MLflow clients go with it; None in a lab without tracking.
    tracking_url: str | None = None
