"""Passkeys: Web Authentication (W3C, level 2) with discoverable credentials, and with user verification always."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from webauthn import (
    generate_authentication_options,
    generate_registration_options,
    options_to_json,
    verify_authentication_response,
    verify_registration_response,
)
from webauthn.helpers.structs import (
    AuthenticatorSelectionCriteria,
    PublicKeyCredentialDescriptor,
    ResidentKeyRequirement,
    UserVerificationRequirement,
)

from carrel.core.domain.errors import CarrelError, Conflict, Denied, Invalid, NotFound, Unauthenticated
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller, User
from carrel.lab.credentials.local import LocalSignIn, Proof, may_change
from carrel.lab.credentials.port import NewPasskey, Passkey

#: Seconds that a browser has for its answer, and challenges that are remembered.
_LIFETIME, _MOST = 300.0, 10_000
#: Seconds after a sign-in in which it counts as a proof of its own.
_RECENT = 15 * 60.0
_LONGEST_NAME = 100
_REFUSED = "The passkey was not accepted."
_log = logging.getLogger("carrel.lab.credentials")


@dataclass(frozen=True, slots=True)
class Party:
    """The relying party (section 4): by which name and at which origin browsers know the lab."""

    #: A domain, or "localhost"; addresses are none.
    id: str
    #: Scheme, host and port.
    origin: str


class Challenges:
    """What a browser is to sign: each once, for one purpose, for five minutes. In memory; thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._open: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def issue(self, purpose: str) -> bytes:
        """A new one."""
        challenge = secrets.token_bytes(32)
        with self._guard:
            self._open[challenge] = (purpose, self._clock() + _LIFETIME)
            while len(self._open) > _MOST:
                self._open.popitem(last=False)
        return challenge

    def take(self, challenge: bytes, purpose: str) -> bool:
        """Whether it was open for this purpose; it is not from now on."""
        with self._guard:
            found = self._open.pop(challenge, None)
        return found is not None and found[0] == purpose and self._clock() < found[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passkeys:
    """Passkeys of users. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    local: LocalSignIn
    #: None where the lab has no name that passkeys can be for.
    party: Callable[[], Party | None]
    #: The lab's secret: the authenticators' names for users are derived from it.
    key: bytes = field(repr=False)
    _challenges: Challenges = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_challenges", Challenges(self.local.clock))

    # ---- signing in

    def ask(self) -> str:
        """What a browser is asked for (JSON): any passkey of this lab's."""
        options = generate_authentication_options(
            rp_id=self._party().id,
            challenge=self._challenges.issue("sign in"),
            timeout=int(_LIFETIME * 1000),
            user_verification=UserVerificationRequirement.REQUIRED,
        )
        return options_to_json(options)

    def sign_in(self, answer: str, tried: Callable[[str], None] = lambda _subject: None) -> Proof:
        """Whose passkey signed; `tried` hears whose it is said to be.

        Raises `Unauthenticated`; of a counter that went back it says so (section 6.1.1).
        """
        party, challenge = self._party(), self._take(answer, "sign in", Unauthenticated)
        known = self.local.store.passkey(_decoded(_part(answer, "rawId")))
        if known is None:
            raise Unauthenticated("The lab does not know this passkey.", remedy="It may have been removed: use another way.")
        tried(known.subject)
        handle = _part(answer, "response", "userHandle", missing="")
        if handle and not hmac.compare_digest(_decoded(handle), self._handle(known.subject)):
            raise Unauthenticated(_REFUSED)
        try:
            verified = verify_authentication_response(
                credential=answer,
                expected_challenge=challenge,
                expected_rp_id=party.id,
                expected_origin=party.origin,
                credential_public_key=known.public_key,
                credential_current_sign_count=0,  # looked at below, once the signature is known to be right
                require_user_verification=True,
            )
        except Exception as error:  # any error in what a stranger sent
            _log.info("A passkey of %s was refused: %s", known.subject, error)
            raise Unauthenticated(_REFUSED) from error
        count = verified.new_sign_count
        back = (count > 0 or known.sign_count > 0) and count <= known.sign_count
        if back:
            _log.warning("The counter of passkey %d of %s went from %d to %d.", known.id, known.subject, known.sign_count, count)
        if back or not self.local.store.used_passkey(known, sign_count=count, now=self.local.clock()):
            raise Unauthenticated(
                f'The counter of the passkey "{known.name}" did not go on: there may be a copy of it.',
                remedy="Sign in another way, remove this passkey and make a new one; if you have no copy, tell an administrator.",
            )

        def confirm() -> None:
            if self.local.store.passkey(known.credential) is None:
                raise Unauthenticated("The passkey was removed just now.")

        return Proof(known.subject, confirm)

    # ---- by invitation

    def ask_invited(self, code: str) -> str:
        """What the browser of an invited person is asked to make."""
        caller = self.local.invited(code)
        return self._ask_new(caller.user, f"invitation {caller.token_id}")

    def by_invitation(self, code: str, answer: str, name: str) -> Proof:
        """Turn an invitation into a passkey: in one step the one is void and the other good."""
        caller = self.local.invited(code)
        assert caller.token_id is not None
        subject = caller.user.subject
        new = self._made(answer, f"invitation {caller.token_id}", name)
        if not self.local.store.redeem(caller.token_id, subject, hash=None, passkey=new, now=self.local.clock()):
            raise Unauthenticated("This invitation was used just now.", remedy="Ask an administrator for another.")
        _log.info("%s made a passkey by invitation.", subject)

        def confirm() -> None:
            if self.local.store.passkey(new.credential) is None:
                raise Unauthenticated("The passkey was taken back just now.", remedy="Ask an administrator of the lab.")

        return Proof(subject, confirm)

    # ---- one's own

    def of(self, caller: Caller) -> Sequence[Passkey]:
        """The caller's passkeys."""
        return self.local.store.passkeys(caller.user.subject)

    def confirm(self, caller: Caller, password: str) -> None:
        """Raise unless the caller may change how they sign in, and shows it: by the password, or by a sign-in of just now."""
        may_change(caller)
        if self.local.confirm_password(caller, password) is not None or not self.of(caller):
            return
        assert caller.token_id is not None
        found = self.local.tokens.store.get(caller.token_id)
        if found is None or found[0].parent is not None or self.local.clock() - found[0].created_at > _RECENT:
            raise Denied(
                "This browser signed in by a link or a token, or more than 15 minutes ago.",
                remedy="Sign out, sign in with your passkey, and do it then.",
            )

    def ask_another(self, caller: Caller, password: str) -> str:
        """What the browser of somebody who is signed in is asked to make."""
        self.confirm(caller, password)
        return self._ask_new(caller.user, f"another of {caller.token_id}")

    def add(self, caller: Caller, answer: str, name: str) -> None:
        """Remember a passkey that was asked for with `ask_another`."""
        may_change(caller)
        assert caller.token_id is not None
        new = self._made(answer, f"another of {caller.token_id}", name)
        if not self.local.store.add_passkey(caller.token_id, caller.user.subject, new, now=self.local.clock()):
            raise Unauthenticated("The session is over.", remedy="Sign in again.")
        _log.info("%s added a passkey.", caller.user.subject)

    def remove(self, caller: Caller, number: int, password: str) -> None:
        """Forget a passkey of the caller's. Raises `NotFound`."""
        self.confirm(caller, password)
        if not self.local.store.remove_passkey(caller.user.subject, number):
            raise NotFound(f"You have no passkey {number}.", remedy="Load the page again.")
        _log.info("%s removed a passkey.", caller.user.subject)

    # ---- parts

    def _party(self) -> Party:
        party = self.party()
        if party is None:
            raise Conflict("Passkeys need https.", remedy="An administrator sets public_url, with TLS (docs/settings.md).")
        return party

    def _handle(self, subject: str) -> bytes:
        """The authenticators' name for a user: it does not show who that is (section 14.6.1)."""
        return hmac.new(self.key, f"carrel passkeys\0{subject}".encode(), hashlib.sha256).digest()

    def _ask_new(self, user: User, purpose: str) -> str:
        party = self._party()
        known = self.local.store.passkeys(user.subject)
        options = generate_registration_options(
            rp_id=party.id,
            rp_name=f"Carrel at {party.id}",
            user_id=self._handle(user.subject),
            user_name=user.subject,
            user_display_name=user.name,
            challenge=self._challenges.issue(purpose),
            timeout=int(_LIFETIME * 1000),
            authenticator_selection=AuthenticatorSelectionCriteria(
                resident_key=ResidentKeyRequirement.REQUIRED, user_verification=UserVerificationRequirement.REQUIRED
            ),
            exclude_credentials=[PublicKeyCredentialDescriptor(id=one.credential) for one in known],
        )
        return options_to_json(options)

    def _made(self, answer: str, purpose: str, name: str) -> NewPasskey:
        party, challenge = self._party(), self._take(answer, purpose, Invalid)
        called = " ".join(name.split()) or "passkey"
        if len(called) > _LONGEST_NAME or not called.isprintable():
            raise Invalid("The passkey's name cannot be used.", remedy=f"Use 1 to {_LONGEST_NAME} printable characters.")
        try:
            verified = verify_registration_response(
                credential=answer,
                expected_challenge=challenge,
                expected_rp_id=party.id,
                expected_origin=party.origin,
                require_user_verification=True,
            )
        except Exception as error:  # any error in what a browser sent
            _log.info("A new passkey was refused: %s", error)
            raise Invalid(_REFUSED, remedy="Try again, with an authenticator that asks for a PIN or a fingerprint.") from error
        return NewPasskey(
            credential=verified.credential_id,
            public_key=verified.credential_public_key,
            sign_count=verified.sign_count,
            name=called,
        )

    def _take(self, answer: str, purpose: str, wrong: type[CarrelError]) -> bytes:
        try:
            told = json.loads(_decoded(_part(answer, "response", "clientDataJSON")))
            challenge = _decoded(str(told["challenge"]))
        except (ValueError, KeyError, TypeError, Invalid, RecursionError) as error:
            raise wrong(_REFUSED) from error
        if not self._challenges.take(challenge, purpose):
            raise wrong("This took more than five minutes, or was sent before.", remedy="Try again.")
        return challenge


def _part(answer: str, *names: str, missing: str | None = None) -> str:
    """A text in a browser's answer. Raises `Invalid`."""
    try:
        found = json.loads(answer)
        for name in names:
            found = found[name]
    except (ValueError, TypeError, LookupError, RecursionError):
        found = missing
    found = missing if found is None else found
    if not isinstance(found, str):
        raise Invalid(_REFUSED)
    return found


def _decoded(text: str) -> bytes:
    """Bytes of base64url (RFC 4648, 5) without its padding. Raises `Invalid`."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise Invalid(_REFUSED) from error
