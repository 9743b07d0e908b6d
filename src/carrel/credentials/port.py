"""What is remembered of passwords and passkeys; `carrel.store` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPasskey:
    """A passkey before it has a number (Web Authentication, level 2, section 4: a public key credential)."""

    #: The authenticator's name for it: up to 1,023 bytes.
    credential: bytes
    #: In COSE form (RFC 9052, 7).
    public_key: bytes = field(repr=False)
    sign_count: int
    #: What its owner calls it.
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Passkey:
    """A passkey as the lab knows it. Times are Unix seconds."""

    id: int
    subject: str
    credential: bytes
    public_key: bytes = field(repr=False)
    sign_count: int
    name: str
    created_at: float
    last_used_at: float | None = None


class CredentialStore(Protocol):
    """Passwords (as hashes) and passkeys. Each method is one transaction.

    What stores something asks in that transaction whether the token by which it was asked for is still valid, and its owner
    still a user: a reset or a removal in between wins. They return False then, and nothing has changed.
    """

    def password(self, subject: str) -> str | None:
        """The hash of the user's password, or None."""
        ...

    def redeem(self, token_id: int, subject: str, *, hash: str | None, passkey: NewPasskey | None, now: float) -> bool:
        """Revoke an invitation and store what was chosen with it: a password in the place of an earlier one, or a passkey."""
        ...

    def change_password(self, token_id: int, subject: str, *, old: str | None, new: str | None, now: float) -> bool:
        """Put one hash in the place of another; None stands for no password."""
        ...

    def rehash(self, subject: str, *, old: str, new: str) -> bool:
        """The same password under better parameters, unless it was changed meanwhile."""
        ...

    def passkeys(self, subject: str) -> Sequence[Passkey]:
        """The passkeys of a user, the oldest first."""
        ...

    def passkey(self, credential: bytes) -> Passkey | None:
        """The passkey with this credential id, or None."""
        ...

    def add_passkey(self, token_id: int, subject: str, new: NewPasskey, *, now: float) -> bool:
        """Remember a passkey. Raises `Conflict` when the lab knows it, or for too many."""
        ...

    def remove_passkey(self, subject: str, number: int) -> bool:
        """Forget a passkey; return whether there was one."""
        ...

    def used_passkey(self, known: Passkey, *, sign_count: int, now: float) -> bool:
        """Note a use, and the authenticator's new counter, unless the counter has changed since `known` was read."""
        ...
