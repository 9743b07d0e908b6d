"""Users and their tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from carrel.wire.v1.base import Request, Response

#: Ten years: longer is "no end".
LONGEST = 10 * 366 * 86400


class UserRequest(Request):
    """Body of ``POST /api/v1/users`` (administrators)."""

    name: str
    role: Literal["user", "manager", "operator", "admin"] = "user"
    #: Seconds for which the token holds; 0: without an end. Left out: a year.
    expires_in: int | None = Field(None, ge=0, le=LONGEST)
    #: They may be trusted with the whole lab: a second person comes although nothing keeps jobs apart.
    without_isolation: bool = False


class ResetRequest(Request):
    """Body of ``POST /api/v1/users/{subject}/reset`` (administrators)."""

    expires_in: int | None = Field(None, ge=0, le=LONGEST)


class SuspendRequest(Request):
    """Body of ``POST /api/v1/users/{subject}/suspend`` (administrators)."""

    #: The user reads it.
    reason: str = Field("", max_length=200)
    #: Cancel what runs too.
    cancel_running: bool = False


class InvitationRequest(Request):
    """Body of ``POST /api/v1/invitations`` (administrators)."""

    name: str
    role: Literal["user", "manager", "operator", "admin"] = "user"
    #: Seconds for which it can be used. Left out: a week.
    expires_in: int | None = Field(None, ge=1, le=LONGEST)
    #: They may be trusted with the whole lab: a second person comes although nothing keeps jobs apart.
    without_isolation: bool = False


class RedeemRequest(Request):
    """Body of ``POST /api/v1/invitations/current/redeem``."""

    #: What the token is called in lists.
    name: str = ""


class UserView(Response):
    """A user."""

    subject: str
    name: str
    role: str
    #: What their work is charged to where it names no account; "" where no account admits them.
    account: str
    #: "active", "suspended" or "removed"; why and since when.
    state: str = "active"
    state_reason: str = ""
    state_since: datetime | None = None
    #: Who they are at a sign-in provider: its address, a space, and its name for them; "" for nobody. In lists only.
    linked_to: str = ""


class NewUser(Response):
    """A user with a token that was just made; it is shown this once."""

    user: UserView
    token: str
    #: None: it has no end.
    expires_at: datetime | None = None
    #: Address by which people reach the lab.
    url: str = ""
    #: Whether jobs are kept apart, and what not yet, in a sentence or two; "" where jobs run as their owners.
    isolation: str = ""


class UserChange(Response):
    """A user whose state has changed."""

    user: UserView
    #: Jobs of theirs whose end was asked for.
    cancelled: int = 0


class Invitation(Response):
    """A code that can be exchanged once for a token; it is shown this once."""

    user: UserView
    code: str
    expires_at: datetime | None = None
    #: As in `NewUser`.
    url: str = ""
    isolation: str = ""


class UserList(Response):
    """All users (administrators)."""

    users: list[UserView]


class TokenRequest(Request):
    """Body of ``POST /api/v1/tokens``."""

    #: What it is called in lists.
    name: str = ""
    #: "read", "submit", "sessions", "tracking", "all"; left out: "all".
    scopes: list[str] = Field(default_factory=list, max_length=5)
    #: The only account that its jobs are charged to.
    account: str | None = Field(None, max_length=255)
    #: Seconds for which it holds; 0: without an end. Left out: 30 days.
    expires_in: int | None = Field(None, ge=0, le=LONGEST)
