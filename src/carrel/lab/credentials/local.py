"""Sign-in by what the lab itself knows of a person."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from carrel.core.control.tokens import Tokens
from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Conflict, Denied, Invalid, TooMany, Unauthenticated
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller
from carrel.core.policy.access import INVITATION, Action, allowed
from carrel.lab.credentials.passwords import Hashes, check_new, normal
from carrel.lab.credentials.tries import Tries, network_of
from carrel.lab.store.credentials import CredentialTable

_log = logging.getLogger("carrel.lab.credentials")
_WRONG = "The name or the password is not right."


@dataclass(frozen=True, slots=True)
class Proof:
    """Somebody has proven who they are."""

    subject: str
    #: Raises `Unauthenticated` if what they proved it with was taken from them since.
    confirm: Callable[[], None] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSignIn:
    """Passwords of users. Thread-safe; raises the errors of `carrel.core.domain.errors`. Hashing blocks: call it in a thread."""

    store: CredentialTable
    people: UserStore
    tokens: Tokens
    clock: Clock
    monotonic: Clock
    hashes: Hashes = field(default_factory=Hashes)
    _of_people: Tries = field(init=False, repr=False)
    _of_addresses: Tries = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_of_people", Tries(most=10, again=60.0, monotonic=self.monotonic))
        object.__setattr__(self, "_of_addresses", Tries(most=30, again=10.0, monotonic=self.monotonic))

    # ---- signing in

    def by_password(self, name: str, password: str, address: str) -> Proof:
        """Who has this name and this password.

        Raises `Unauthenticated`, in the same words and after the same time for a name that nobody has, and `TooMany` after
        several that were wrong.
        """
        with self.tries(name, address):
            known = self.store.password(name)
            if not self.hashes.matches(known, password) or known is None:
                _log.info("Somebody at %s tried a wrong password%s.", address, f" of {name}" if known is not None else "")
                raise Unauthenticated(_WRONG, remedy="Try again. An administrator helps with `carrel user invite NAME`.")
        if self.hashes.is_weak(known):
            better = self.hashes.make(normal(password))
            known = better if self.store.rehash(name, old=known, new=better) else known

        def confirm() -> None:
            if self.store.password(name) != known:
                raise Unauthenticated("The password was changed just now.", remedy="Sign in with the new one.")

        return Proof(name, confirm)

    @contextmanager
    def tries(self, name: str, address: str) -> Iterator[None]:
        """Count a try of `name` from `address`, and take that back unless `Unauthenticated` comes out. Raises `TooMany`."""
        self._of_addresses.take(place := network_of(address))
        try:
            self._of_people.take(name)
        except TooMany:
            self._of_addresses.give_back(place)
            raise
        try:
            yield
        except Unauthenticated:
            raise
        except BaseException:
            self._right(name, place)
            raise
        self._right(name, place)

    def _right(self, name: str, place: str) -> None:
        self._of_people.give_back(name)
        self._of_addresses.give_back(place)

    # ---- invitations

    def invited(self, code: str) -> Caller:
        """Whom an invitation is for. Raises `Unauthenticated` for one that was used, has expired, or is none."""
        if not code or len(code) > 512 or not code.isascii():
            raise Unauthenticated("That is not an invitation.", remedy="Copy the whole link that you were given.")
        caller = self.tokens.authenticate(code)
        if caller.token_id is None or INVITATION not in caller.scopes:
            raise Unauthenticated("That is a token, and not an invitation.", remedy="Sign in with it as it is.")
        allowed(caller, Action.ENTER).check()
        return caller

    def choose_password(self, code: str, password: str) -> Proof:
        """Turn an invitation into a password: in one step the one is void and the other good. Raises `Invalid` for a bad one."""
        caller = self.invited(code)
        subject = caller.user.subject
        kept = self.hashes.make(check_new(password, subject, caller.user.name))
        assert caller.token_id is not None
        if not self.store.redeem(caller.token_id, subject, hash=kept, now=self.clock()):
            raise Unauthenticated("This invitation was used just now.", remedy="Ask an administrator for another.")
        _log.info("%s chose a password by invitation.", subject)

        def confirm() -> None:
            if self.store.password(subject) != kept:
                raise Unauthenticated("The password was taken back just now.", remedy="Ask an administrator of the lab.")

        return Proof(subject, confirm)

    # ---- one's own

    def is_less(self, caller: Caller) -> bool:
        """Whether the caller's token is good for less than they may do, so that it cannot change how they sign in."""
        return not allowed(caller, Action.CHANGE_SIGN_IN) or caller.account is not None or caller.token_id is None

    def has_password(self, caller: Caller) -> bool:
        """Whether the caller has a password."""
        return self.store.password(caller.user.subject) is not None

    def change_password(self, caller: Caller, old: str, new: str) -> None:
        """Put `new` in the place of `old`, which a user who has one must give."""
        subject = caller.user.subject
        may_change(caller)
        known = self.confirm_password(caller, old)
        kept = self.hashes.make(check_new(new, subject, caller.user.name))
        assert caller.token_id is not None
        if not self.store.change_password(caller.token_id, subject, old=known, new=kept, now=self.clock()):
            raise Conflict("The password was changed elsewhere just now.", remedy="Load the page again.")
        _log.info("%s changed their password.", subject)

    def confirm_password(self, caller: Caller, old: str) -> str | None:
        """The hash of the caller's password, which `old` must be; None where they have none. Raises `Invalid`, `TooMany`."""
        known = self.store.password(caller.user.subject)
        if known is None:
            return None
        self._of_people.take(caller.user.subject)
        if not self.hashes.matches(known, old):
            raise Invalid("The present password is not right.", remedy="Try again.")
        self._of_people.give_back(caller.user.subject)
        return known


def may_change(caller: Caller) -> None:
    """Raise `Denied` unless the caller came with a token of all that they may do: less must not become more."""
    allowed(caller, Action.CHANGE_SIGN_IN).check()
    if caller.account is not None or caller.token_id is None:
        raise Denied(
            f'This browser is signed in with a token for account "{caller.account}" alone.',
            remedy="Sign in another way to change how you sign in.",
        )
