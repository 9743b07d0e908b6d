"""Programs that are signed in as somebody, or ask for it. Every secret is here as a digest only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.token import Token
from carrel.core.domain.user import User


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRequest:
    """What a program asks for, and what it says of itself."""

    #: Its id among `carrel.lab.signin.clients`.
    client: str
    #: Words of `carrel.core.policy.access.CHOICES`.
    scopes: tuple[str, ...]
    #: What it calls the machine it runs on: its own claim.
    host: str
    #: From where it asked, as the lab saw it.
    address: str


class Decision(StrEnum):
    """What a person said to a program that waits."""

    NONE = "none"
    APPROVED = "approved"
    DENIED = "denied"
    #: Approved, and the tokens are handed out.
    TAKEN = "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A program that waits for a person to approve it elsewhere (RFC 8628). Times are Unix seconds."""

    asked: AuthorizationRequest
    created_at: float
    expires_at: float
    #: Seconds that it has to leave between two questions.
    interval: int
    polled_at: float | None = None
    decision: Decision = Decision.NONE
    #: Who decided, and the only account that their tokens may charge.
    subject: str | None = None
    account: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSignIn:
    """A sign-in before it has a number; its secrets as digests."""

    subject: str
    name: str
    client: str
    scopes: tuple[str, ...]
    account: str | None
    family: str
    refresh: str
    access: str
    access_until: float
    #: When it ends unless it is used before, and when it ends anyhow.
    idle_until: float
    ends_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """What takes the place of a used refresh token; secrets as digests."""

    refresh: str
    #: The one that was shown, and what its bearer showed with it to be known again.
    previous: str
    retry: str | None
    access: str
    access_until: float
    idle_until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """A program that is signed in as a person; its token has the number and the end."""

    token: Token
    user: User
    client: str
    refresh: str
    previous: str | None
    retry: str | None
    ends_at: float
