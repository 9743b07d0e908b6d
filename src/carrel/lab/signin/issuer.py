"""The issuer: who asked, what a person said, and which tokens follow from it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from carrel.core.control.tokens import TOKEN_PREFIX, Tokens, check_state, day, token_digest
from carrel.core.domain.errors import CarrelError, Conflict, NotFound, TooMany
from carrel.core.domain.ports import Clock
from carrel.core.domain.sign_in import AuthorizationRequest, Decision, Device, NewSignIn, Renewal, SignIn
from carrel.core.domain.token import Token
from carrel.core.domain.user import Caller, User
from carrel.core.policy.access import ALL, CHOICES, Action, Resource, allowed
from carrel.lab.signin import device as devices
from carrel.lab.signin.clients import Client, find_client
from carrel.lab.signin.refused import Refused
from carrel.lab.store.sign_ins import SignInTable

#: Seconds for which an access token is good.
ACCESS_LIFETIME = 3600
#: Seconds after which a sign-in ends that is not used, and after which it ends anyhow.
IDLE_LIFETIME, LONGEST_LIFETIME = 30 * 86400.0, 180 * 86400.0
#: What refresh tokens start with; then the family, a dot, and the part that changes with each use.
REFRESH_PREFIX = "carrel_refresh_"
#: Who has revoked a sign-in whose refresh token came twice.
_TWICE = "the lab: its refresh token was used twice"
_LONGEST_HOST = 60

_log = logging.getLogger("carrel.lab.signin")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAuthorization:
    """What a program gets that waits for a person (RFC 8628, 3.2)."""

    device_code: str = field(repr=False)
    user_code: str = field(repr=False)
    expires_in: int
    interval: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The tokens of a sign-in, which are not shown again."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    #: Seconds.
    expires_in: int
    scopes: tuple[str, ...]
    user: User
    token: Token


@dataclass(frozen=True, slots=True)
class _Secrets:
    """New secrets of a sign-in."""

    family: str
    refresh: str
    access: str

    @classmethod
    def new(cls, family: str | None = None) -> _Secrets:
        return cls(family or secrets.token_urlsafe(24), secrets.token_urlsafe(32), f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}")

    @property
    def refresh_token(self) -> str:
        return f"{REFRESH_PREFIX}{self.family}.{self.refresh}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """Thread-safe. Programs are refused with `Refused`; people get the errors of `carrel.core.domain.errors`."""

    store: SignInTable
    tokens: Tokens
    find_user: Callable[[str], User | None]
    clock: Clock
    #: A key of the lab's: user codes are short, so that their plain digests could be turned back.
    secret: bytes = field(repr=False)
    #: Seconds from one question of a waiting program to the next.
    interval: int = devices.INTERVAL
    _wrong: devices.WrongTries = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_wrong", devices.WrongTries(self.clock))

    # ---- signing in (RFC 8628)

    def begin_device(self, *, client_id: str, scope: str, host: str, address: str) -> DeviceAuthorization:
        """Give a program the codes with which it waits for a person."""
        asked = self._asked(find_client(client_id), scope, host, address)
        now = self.clock()
        device_code, user_code = secrets.token_urlsafe(32), devices.new_user_code()
        device = Device(asked=asked, created_at=now, expires_at=now + devices.LIFETIME, interval=self.interval)
        if not self.store.add_device(
            token_digest(device_code), self._hidden(user_code), device, of_address=devices.OF_ADDRESS, of_all=devices.OF_ALL
        ):
            raise TooMany(
                "Too many programs wait for somebody to sign them in.",
                remedy="Finish or stop one of them; each ends by itself after ten minutes.",
                retry_after=60,
            )
        return DeviceAuthorization(
            device_code=device_code, user_code=user_code, expires_in=devices.LIFETIME, interval=self.interval
        )

    def waiting(self, caller: Caller, text: str, *, address: str) -> tuple[str, Device]:
        """The code as it was given, and the program that waits with it. Raises `NotFound`, and `TooMany` after wrong tries."""
        self._may_sign_in(caller)
        self._wrong.check(caller.user.subject, address)
        user_code = devices.read_user_code(text)
        found = None if user_code is None else self.store.device_of(self._hidden(user_code))
        if user_code is None or found is None or found.decision is not Decision.NONE or self.clock() >= found.expires_at:
            self._wrong.note(caller.user.subject, address)
            raise NotFound(
                "No program waits with this code.", remedy="Look at the code in the terminal again; it is good for ten minutes."
            )
        return user_code, found

    def decide(self, caller: Caller, text: str, *, approve: bool, address: str) -> Device:
        """Let the program sign in as the caller, or refuse it."""
        user_code, device = self.waiting(caller, text, address=address)
        decision, me = Decision.APPROVED if approve else Decision.DENIED, caller.user.subject
        if not self.store.decide(self._hidden(user_code), decision, subject=me, account=caller.account, now=self.clock()):
            raise Conflict("This was decided just now.", remedy="Look at the terminal.")
        _log.info("%s: %s by %s.", _name(device.asked), decision.value, me)
        return device

    def exchange_device(self, *, client_id: str, device_code: str) -> Granted:
        """The tokens of a program that a person has approved; until then `Refused` says what it has to do."""
        client, digest = find_client(client_id), token_digest(device_code)
        device, now = self.store.device(digest), self.clock()
        if device is None or device.asked.client != client.id:
            raise Refused("invalid_grant", "The device code is not known here. Ask for another.")
        early = devices.too_early(device, now)
        interval = device.interval + devices.SLOWER if early else device.interval
        self.store.polled(digest, now=now, interval=interval)
        if early and device.decision is Decision.NONE:
            raise Refused("slow_down", f"Ask every {interval} seconds, not more often.")
        user = self._active(devices.check_poll(device, now))
        new, made = self._new(device.asked, user, device.account)
        token = self.store.take_device(digest, new, now=now)
        if token is None:
            raise Refused("invalid_grant", "The tokens of this device code were handed out already.", user=user)
        return self._granted(made, token, user)

    # ---- afterwards

    def renew(self, *, client_id: str, refresh_token: str, scope: str = "", retry: str | None = None) -> Granted:
        """New tokens for a refresh token, which is void from then on (RFC 6749, 6; RFC 9700, 4.14.2).

        One that comes again ends the sign-in: two have it. `retry` is a secret that the program chose, and still has when it lost
        the answer: who shows the token again together with it is the one who showed it before.
        """
        client = find_client(client_id)
        for _ in range(2):  # the second time when another request was just faster
            family, part = _parts(refresh_token)
            found = self._check_renewal(self.store.sign_in(token_digest(family)), client, scope)
            if not self._proves(found, part, retry):
                break
            now, made = self.clock(), _Secrets.new(family)
            until = min(now + ACCESS_LIFETIME, found.ends_at)
            renewal = Renewal(
                refresh=token_digest(made.refresh),
                previous=token_digest(part),
                retry=None if retry is None else token_digest(retry),
                access=token_digest(made.access),
                access_until=until,
                idle_until=min(now + IDLE_LIFETIME, found.ends_at),
            )
            if self.store.renew(found.token.id, found.refresh, renewal, now=now):
                return self._granted(made, replace(found.token, expires_at=renewal.idle_until), found.user, until=until)
        self._end(found.token.id, by=_TWICE)
        _log.warning("A refresh token of %s came twice: %s ends.", found.user.subject, found.token.name)
        raise Refused(
            "invalid_grant",
            "This refresh token was used before; the sign-in has ended.",
            user=found.user,
            rule="refresh token used twice",
        )

    def revoke(self, *, client_id: str, token: str) -> tuple[User, Token] | None:
        """End the sign-in that a refresh or access token belongs to (RFC 7009); None when there is none, which is no error."""
        client = find_client(client_id)
        if token.startswith(REFRESH_PREFIX):
            found = self.store.sign_in(token_digest(_parts(token)[0]))
            if found is None or found.client != client.id:
                return None
            user, about = found.user, found.token
        else:
            known = self.tokens.store.find(token_digest(token))
            if known is None or not self.store.is_sign_in(known[0].id):
                return None
            about, user = known
        if about.revoked_at is None:
            self._end(about.id, by=user.subject)
        return user, about

    # ---- parts

    def _check_renewal(self, found: SignIn | None, client: Client, scope: str) -> SignIn:
        if found is None or found.client != client.id:
            raise Refused("invalid_grant", "The refresh token is not known here.")
        token, user = found.token, found.user
        if token.revoked_at is not None:
            by = f" by {token.revoked_by}" if token.revoked_by else ""
            raise Refused("invalid_grant", f"The sign-in was ended on {day(token.revoked_at)}{by}.", user=user, rule="revoked")
        if not token.valid(self.clock()):
            raise Refused("invalid_grant", f"The sign-in was good until {day(token.expires_at)}.", user=user, rule="expired")
        self._active(user.subject)
        if scope and set(scope.split()) != set(token.scopes):
            raise Refused("invalid_scope", f"The sign-in is for {' '.join(token.scopes)}, no more and no less.", user=user)
        return found

    def _proves(self, found: SignIn, part: str, retry: str | None) -> bool:
        """Whether who shows `part` is the sign-in's program: by the present token, or the one before whose answer was lost."""
        shown = token_digest(part)
        if hmac.compare_digest(shown, found.refresh):
            return True
        again = retry is not None and found.retry is not None and hmac.compare_digest(token_digest(retry), found.retry)
        return again and found.previous is not None and hmac.compare_digest(shown, found.previous)

    def _asked(self, client: Client, scope: str, host: str, address: str) -> AuthorizationRequest:
        return AuthorizationRequest(client=client.id, scopes=_scopes(scope), host=_host(host), address=address[:64])

    def _may_sign_in(self, caller: Caller) -> None:
        # A sign-in is a token of theirs, made in another way.
        allowed(caller, Action.MANAGE_TOKENS, Resource(owner=caller.user.subject)).check()

    def _active(self, subject: str) -> User:
        """The user, as they are now. Raises `Refused` for somebody who may not do anything."""
        user = self.find_user(subject)
        if user is None:
            raise Refused("access_denied", "The person is not in this lab any more.")
        try:
            check_state(user)
        except CarrelError as error:
            raise Refused("access_denied", str(error), user=user, rule="state of the user") from error
        return user

    def _new(self, asked: AuthorizationRequest, user: User, account: str | None) -> tuple[NewSignIn, _Secrets]:
        made, now = _Secrets.new(), self.clock()
        new = NewSignIn(
            subject=user.subject,
            name=_name(asked),
            client=asked.client,
            scopes=asked.scopes,
            account=account,
            family=token_digest(made.family),
            refresh=token_digest(made.refresh),
            access=token_digest(made.access),
            access_until=now + ACCESS_LIFETIME,
            idle_until=now + IDLE_LIFETIME,
            ends_at=now + LONGEST_LIFETIME,
        )
        return new, made

    def _granted(self, made: _Secrets, token: Token, user: User, *, until: float | None = None) -> Granted:
        return Granted(
            access_token=made.access,
            refresh_token=made.refresh_token,
            expires_in=ACCESS_LIFETIME if until is None else max(1, round(until - self.clock())),
            scopes=token.scopes,
            user=user,
            token=token,
        )

    def _end(self, token_id: int, *, by: str) -> None:
        self.tokens.store.revoke(by=by, now=self.clock(), token_id=token_id)
        self.tokens.announce()

    def _hidden(self, user_code: str) -> str:
        return hmac.new(self.secret, b"user code " + user_code.encode(), hashlib.sha256).hexdigest()


def _parts(refresh_token: str) -> tuple[str, str]:
    family, _, part = refresh_token.removeprefix(REFRESH_PREFIX).partition(".")
    return family, part


def _scopes(text: str) -> tuple[str, ...]:
    words: Sequence[str] = text.split() or (ALL,)
    for word in words:
        if word not in CHOICES:
            raise Refused("invalid_scope", f"There are the scopes {', '.join(CHOICES)}.")
    return tuple(dict.fromkeys(words))


def _host(text: str) -> str:
    """What a program calls its machine, as it may stand on a page and in lists."""
    shown = "".join(char for char in " ".join(text.split()) if char.isprintable())
    return shown[:_LONGEST_HOST] or "an unnamed machine"


def _name(asked: AuthorizationRequest) -> str:
    """What the token of a sign-in is called in lists."""
    return f"{find_client(asked.client).name} on {asked.host}"
