"""Access tokens: who makes which, what they are worth now, and when they were used."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, Protocol

from carrel.core.control.last_use import LastUse
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound, Unauthenticated
from carrel.core.domain.ports import Clock
from carrel.core.domain.token import Token
from carrel.core.domain.user import Caller, User, UserState
from carrel.core.policy.access import ALL, CHOICES, INVITATION, SCOPES, Action, Resource, allowed, token_allows


class TokenStore(Protocol):
    """Access tokens. Each method is one transaction. `carrel.lab.store.tokens.TokenTable` is one, and has the promises."""

    def add(self, new: Token, *, now: float) -> Token: ...
    def find(self, digest: str) -> tuple[Token, User] | None: ...
    def known(self, digest: str) -> tuple[Token, User] | None: ...
    def get(self, token_id: int) -> tuple[Token, User] | None: ...
    def list(self, subject: str | None) -> Sequence[Token]: ...
    def revoke(self, *, by: str, now: float, token_id: int | None = None, subject: str | None = None) -> int: ...
    def replace(self, new: Token, *, by: str, now: float, token_id: int | None = None) -> Token | None: ...
    def used(self, moments: Mapping[int, float]) -> None: ...


#: What a user's token starts with, so that a leaked one is recognised by people and by secret scanners.
TOKEN_PREFIX = "carrel_"
#: What an invitation starts with.
INVITATION_PREFIX = "carrel_invitation_"
#: How long an invitation can be used: a week.
INVITED_FOR = 7 * 86400.0
#: How long a token holds when its maker does not say: those that people make, and those that an administrator hands out.
DEFAULT_LIFETIME, HANDED_OUT_LIFETIME = 30 * 86400.0, 365 * 86400.0
#: How long a browser stays signed in, and its token is good for.
BROWSER_LIFETIME = 12 * 3600.0
#: What the name of a browser's token starts with.
BROWSER = "browser, "
#: Characters of a token's name.
_LONGEST_NAME = 100

_log = logging.getLogger("carrel.tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Makes, knows and revokes access tokens. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    store: TokenStore
    clock: Clock
    #: Raises `Denied` when a user may not charge an account.
    check_account: Callable[[str, User], object] = lambda _account, _user: None
    _uses: LastUse = field(init=False, repr=False)
    _watchers: list[Callable[[], None]] = field(init=False, default_factory=list, repr=False)
    _guard: threading.Lock = field(init=False, default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_uses", LastUse(self.store.used))

    def close(self) -> None:
        """Write down what was used last, and end the thread that does so."""
        self._uses.close()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` (from any thread) when something has lost its validity, until the returned function is called."""
        with self._guard:
            self._watchers.append(callback)

        def unsubscribe() -> None:
            with self._guard:
                self._watchers.remove(callback)

        return unsubscribe

    def announce(self) -> None:
        """Have everybody who was let in looked at again."""
        with self._guard:
            watchers = tuple(self._watchers)
        for watcher in watchers:
            watcher()

    # ---- who calls

    def authenticate(self, token: str) -> Caller:
        """Whose token it is. Raises `Unauthenticated`, or `Denied` for somebody who is suspended."""
        found = self.store.find(token_digest(token))
        if found is None:
            raise Unauthenticated("The token is not valid here.", remedy="Ask the lab's administrator for a new one.")
        return self._caller(*found)

    def by_number(self, token_id: int) -> Caller:
        """Whose token has this number, which was shown before. Raises as `authenticate`."""
        found = self.store.get(token_id)
        if found is None:
            raise Unauthenticated("The token is not valid here.", remedy="Ask the lab's administrator for a new one.")
        return self._caller(*found)

    def recognize(self, token: str) -> Caller | None:
        """The same without waiting; None where that does not tell."""
        found = self.store.known(token_digest(token))
        return None if found is None else self._caller(*found)

    def _caller(self, known: Token, user: User) -> Caller:
        now = self.clock()
        if not known.valid(now):
            raise _void(known, user)
        check_state(user)
        self._uses.note(known.id, now)
        scopes = frozenset(known.scopes)
        return Caller(user=user, scopes=scopes, token_id=known.id, until=known.expires_at, account=known.account)

    def is_valid(self, token: str) -> bool:
        """True when it opens anything, for any owner."""
        found = self.store.find(token_digest(token))
        return found is not None and found[0].valid(self.clock())

    # ---- what people do with theirs

    def create(
        self,
        caller: Caller,
        *,
        name: str = "",
        scopes: Sequence[str] = (),
        account: str | None = None,
        lifetime: float | None = DEFAULT_LIFETIME,
    ) -> tuple[Token, str]:
        """Make a token of the caller's, for no more than the caller's own; None: it has no end. It is not shown again."""
        allowed(caller, Action.MANAGE_TOKENS, Resource(owner=caller.user.subject)).check()
        chosen = _scopes(caller, scopes)
        account = account or caller.account
        if account is not None:
            if caller.account not in (None, account):
                raise Denied(
                    f'This token is for account "{caller.account}" alone.', remedy="Leave --account out, or sign in with another."
                )
            self.check_account(account, caller.user)
        now = self.clock()
        text = _new_text()
        new = Token(
            digest=token_digest(text),
            user=caller.user.subject,
            name=_own_name(name),
            scopes=chosen,
            created_by=caller.user.subject,
            account=account,
            expires_at=None if lifetime is None else now + lifetime,
        )
        made = self.store.add(new, now=now)
        _log.info("%s made token %d (%s).", made.created_by, made.id, ", ".join(made.scopes))
        return made, text

    def list(self, caller: Caller, *, everybody: bool = False) -> Sequence[Token]:
        """The caller's tokens, or those of everybody, which only administrators may ask for; also those that are void."""
        if everybody:
            allowed(caller, Action.LIST_TOKENS).check()
        now, found = self.clock(), self.store.list(None if everybody else caller.user.subject)
        return [replace(one, state=state_of(one, now)) for one in found]

    def revoke(self, caller: Caller, token_id: int) -> None:
        """End a token: one's own, or as an administrator anybody's. Raises `NotFound`."""
        found = self.store.get(token_id)
        missing = NotFound(f"There is no token {token_id}.", remedy="`carrel token list` shows yours.")
        if found is None:
            raise missing
        itself, owner = caller.token_id == token_id, found[1].subject
        allowed(caller, Action.SIGN_OUT if itself else Action.MANAGE_TOKENS, Resource(owner=owner)).check(missing)
        self._revoked(self.store.revoke(by=caller.user.subject, now=self.clock(), token_id=token_id), caller, owner)

    # ---- what others in the lab do for people

    def hand_out(self, subject: str, *, name: str, by: str, lifetime: float | None = HANDED_OUT_LIFETIME) -> tuple[Token, str]:
        """Make a token for everything that a user may do."""
        text, now = _new_text(), self.clock()
        return self.store.add(self._full(text, subject, name=name, by=by, lifetime=lifetime), now=now), text

    def sign_in(self, subject: str, text: str, *, how: str, shown: int | None = None) -> Token:
        """Make `text` the token of a browser whose person has proven who they are; `how` tells people which way.

        `shown`: by a token of that number. Then the browser's is good for no more, and ends with it.
        """
        new = self._full(text, subject, name=_name(f"{BROWSER}{how}"), by=subject, lifetime=BROWSER_LIFETIME)
        if shown is not None and (found := self.store.get(shown)) is not None:
            ends = [end for end in (new.expires_at, found[0].expires_at) if end is not None]
            new = replace(new, parent=shown, scopes=found[0].scopes, account=found[0].account, expires_at=min(ends))
        made = self.store.add(new, now=self.clock())
        if shown is not None:
            try:
                self.by_number(shown)
            except CarrelError:  # it was revoked just now
                self.end(made)
                raise
        _log.info("%s signed in (%s).", subject, how)
        return made

    def end(self, token: Token) -> None:
        """Revoke a token in the name of its owner."""
        self.store.revoke(by=token.user, now=self.clock(), token_id=token.id)
        self.announce()

    def replace_all(self, subject: str, *, name: str, by: str, lifetime: float | None = HANDED_OUT_LIFETIME) -> tuple[Token, str]:
        """The same, and none of their other tokens is valid any more."""
        text, now = _new_text(), self.clock()
        made = self.store.replace(self._full(text, subject, name=name, by=by, lifetime=lifetime), by=by, now=now)
        assert made is not None  # only a token that is named can be missing
        self.announce()
        return made, text

    def invite(self, subject: str, *, by: str, lifetime: float) -> tuple[Token, str]:
        """Make a code that its bearer can exchange once for a token of the user's."""
        text, now = _new_text(INVITATION_PREFIX), self.clock()
        new = self._full(text, subject, name="an invitation", by=by, lifetime=lifetime)
        return self.store.add(replace(new, scopes=(INVITATION,)), now=now), text

    def redeem(self, caller: Caller, *, name: str) -> tuple[Token, str]:
        """Exchange the invitation that the caller has shown; it is void from now on. Raises `Conflict` if it is none."""
        if caller.token_id is None or INVITATION not in caller.scopes:
            raise Conflict("This is a token already, and no invitation.", remedy="Use it as it is.")
        me, text = caller.user.subject, _new_text()
        new = self._full(text, me, name=_own_name(name or "by invitation"), by=me, lifetime=HANDED_OUT_LIFETIME)
        made = self.store.replace(new, by=me, now=self.clock(), token_id=caller.token_id)
        if made is None:
            raise Unauthenticated("This invitation was used just now.", remedy="Ask an administrator for another.")
        return made, text

    def revoke_all(self, subject: str, *, by: str) -> int:
        """No token of the user is valid any more; returns how many were."""
        number = self.store.revoke(by=by, now=self.clock(), subject=subject)
        self.announce()
        return number

    def _full(self, text: str, subject: str, *, name: str, by: str, lifetime: float | None) -> Token:
        return Token(
            digest=token_digest(text),
            user=subject,
            name=name,
            scopes=(ALL,),
            created_by=by,
            expires_at=None if lifetime is None else self.clock() + lifetime,
        )

    def _revoked(self, number: int, caller: Caller, subject: str) -> None:
        if number:
            _log.info("%s revoked a token of %s.", caller.user.subject, subject)
        self.announce()


def _scopes(caller: Caller, words: Sequence[str]) -> tuple[str, ...]:
    """What is chosen, and no more than the token that asks is good for."""
    chosen = tuple(dict.fromkeys(words or (ALL,)))
    for word in chosen:
        if word not in CHOICES:
            raise Invalid(f'There is no scope "{word[:40]}".', remedy=f"There are: {', '.join(CHOICES)}.")
        for action in SCOPES[word]:
            token_allows(caller, action).check()
    return chosen


def state_of(token: Token, now: float) -> Literal["valid", "expired", "revoked"]:
    """Whether it is valid, or why not."""
    return "valid" if token.valid(now) else "expired" if token.revoked_at is None else "revoked"


def check_state(user: User) -> None:
    """Raise the error for a user who is suspended or removed."""
    if user.state is UserState.ACTIVE:
        return
    since = f" since {day(user.state_since)}" if user.state_since is not None else ""
    if user.state is UserState.REMOVED:
        raise Unauthenticated(f"{user.name} is no user of this lab any more{since}.", remedy="Ask an administrator of the lab.")
    why = f": {user.state_reason}" if user.state_reason else ""
    raise Denied(
        f"{user.name} is suspended{since}{why}".rstrip(".") + ".",
        remedy=f"Ask {user.state_by or 'an administrator'}, who did this. Nothing is lost: your jobs and files are kept.",
        details={"state": user.state.value, "reason": user.state_reason},
    )


def _void(token: Token, user: User) -> Unauthenticated:
    """The error for the bearer of a token that was valid once."""
    called = f'The token "{token.name}" (number {token.id})'
    if INVITATION in token.scopes:
        ask = f"Ask an administrator for another: `carrel user invite {user.subject}`."
        if token.revoked_at is not None:
            return Unauthenticated(f"This invitation was used or taken back on {day(token.revoked_at)}.", remedy=ask)
        return Unauthenticated(f"This invitation was good until {day(token.expires_at)}.", remedy=ask)
    ask = f"an administrator makes a new one with `carrel user reset {user.subject}`."
    if token.revoked_at is not None:
        by = f" by {token.revoked_by}" if token.revoked_by else ""
        return Unauthenticated(
            f"{called} was revoked on {day(token.revoked_at)}{by}.",
            remedy=f"Sign in again with `carrel login`, or use another of your tokens; {ask}",
            details={"token": token.id, "cause": "revoked"},
        )
    return Unauthenticated(
        f"{called} expired on {day(token.expires_at)}.",
        remedy=f"Sign in again with `carrel login`, or make another with `carrel token create` where you are signed in; or {ask}",
        details={"token": token.id, "cause": "expired"},
    )


def day(moment: float | None) -> str:
    """A moment as people read it."""
    return "an unknown day" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def token_digest(token: str) -> str:
    """What the database keeps of a token. Tokens have 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def _new_text(prefix: str = TOKEN_PREFIX) -> str:
    return prefix + secrets.token_urlsafe(32)


def _own_name(text: str) -> str:
    name = _name(text)
    if name.startswith(BROWSER):  # those of browsers are listed apart: no other token hides among them
        raise Invalid(f'A token is not called "{BROWSER}…".', remedy="Choose another name.")
    return name


def _name(text: str) -> str:
    name = " ".join(text.split()) or "no name"
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise Invalid(f'"{name[:40]}" cannot be the name of a token.', remedy=f"Use 1 to {_LONGEST_NAME} printable characters.")
    return name
