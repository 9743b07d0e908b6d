"""Who may use the lab: people come, lose their tokens, are suspended, and go."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from carrel.control.ports import UserStore
from carrel.control.tokens import HANDED_OUT_LIFETIME, Tokens
from carrel.domain.errors import Conflict, Invalid, NotFound
from carrel.domain.ports import Clock
from carrel.domain.token import Token
from carrel.domain.user import Caller, Role, User, UserState
from carrel.policy.access import Action, allowed

_log = logging.getLogger("carrel.users")


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """What administrators do about people. Thread-safe; raises the errors of `carrel.domain.errors`."""

    people: UserStore
    tokens: Tokens
    clock: Clock

    def add(
        self, caller: Caller, name: str, role: Role = Role.USER, *, lifetime: float | None = HANDED_OUT_LIFETIME
    ) -> tuple[User, Token, str]:
        """Add a person and return them with their token, which is not shown again."""
        allowed(caller, Action.MANAGE_USERS).check()
        user = self._new(name, role)
        made, text = self.tokens.hand_out(user.subject, name="the first one", by=caller.user.subject, lifetime=lifetime)
        return user, made, text

    def reset(self, caller: Caller, subject: str, *, lifetime: float | None = HANDED_OUT_LIFETIME) -> tuple[User, Token, str]:
        """Make a new token for a user; none of their others is valid any more, and what was open with them ends."""
        allowed(caller, Action.MANAGE_USERS).check()
        user = self.find(subject)
        if user.state is UserState.REMOVED:
            raise Conflict(f'The user "{subject}" was removed.', remedy=f"First take them back: `carrel user resume {subject}`.")
        made, text = self.tokens.replace_all(subject, name="after a reset", by=caller.user.subject, lifetime=lifetime)
        _log.info("%s gave %s a new token; the old ones are void.", caller.user.subject, subject)
        return user, made, text

    def revoke_tokens(self, caller: Caller, subject: str) -> int:
        """End the validity of all tokens of a user."""
        allowed(caller, Action.MANAGE_USERS).check()
        self.find(subject)
        return self.tokens.revoke_all(subject, by=caller.user.subject)

    def find(self, subject: str) -> User:
        """The user with this subject. Raises `NotFound`."""
        user = self.people.get(subject)
        if user is None:
            raise NotFound(f'There is no user "{subject}".', remedy="`carrel user list` shows all.")
        return user

    def _new(self, name: str, role: Role) -> User:
        if not name or len(name) > 255 or not name.isprintable():
            raise Invalid(f'"{name}" is not a user name.', remedy="Use 1 to 255 printable characters.")
        known = self.people.get(name)
        if known is not None and known.state is UserState.REMOVED:
            raise Conflict(
                f'A user "{name}" was removed; their jobs and records are kept under this name.',
                remedy=f"If it is the same person: `carrel user resume {name}`. Else choose another name.",
            )
        user = User(subject=name, name=name, role=role)
        self.people.add(user, now=self.clock())
        return user
