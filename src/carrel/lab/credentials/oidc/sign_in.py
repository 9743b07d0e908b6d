"""Sign-in through the provider: from the button to a user of the lab."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from carrel.core.control.tokens import check_state
from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Denied, Unauthenticated, Unavailable
from carrel.core.domain.identity import Given, Identity
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import User
from carrel.lab.credentials.local import Proof
from carrel.lab.credentials.oidc.failures import ProviderFailed, Refused, Rejected, shown
from carrel.lab.credentials.oidc.flow import Flow, Flows
from carrel.lab.credentials.oidc.id_token import Expected, check_id_token
from carrel.lab.credentials.oidc.people import Membership, Naming, claim_of
from carrel.lab.credentials.oidc.provider import Provider
from carrel.lab.credentials.tries import Tries, network_of
from carrel.lab.store.identities import IdentityTable

#: What the provider's answer may have in it once, each (RFC 6749, 3.1: none twice).
_ANSWER = ("code", "state", "iss", "error", "error_description")
_LONGEST_CODE = 4096
_ERROR = re.compile(r"[a-z_]{1,64}\Z")
_log = logging.getLogger("carrel.lab.credentials")


@dataclass(frozen=True, slots=True)
class Arrived:
    """Somebody came back from the provider and is known."""

    proof: Proof
    #: Where they go now.
    after: str
    #: What their groups changed, for the audit log ("": nothing).
    changed: str


@dataclass(frozen=True, slots=True)
class _Said:
    """What a provider says of a person: in the ID token, and in userinfo."""

    sub: str
    sources: tuple[Mapping[str, Any], ...]

    def having(self, *names: str) -> Mapping[str, Any]:
        """The first that has all of these claims: what belongs together is never put together from two. Else the ID token."""
        for source in self.sources:
            if all(claim_of(source, name) is not None for name in names):
                return source
        return next((source for source in self.sources if claim_of(source, names[0]) is not None), self.sources[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSignIn:
    """One provider's people. Thread-safe; blocks while the provider is asked; raises the errors of
    `carrel.core.domain.errors`."""

    provider: Provider
    #: What people call it.
    name: str
    redirect_uri: str
    #: The lab's secret.
    key: bytes = field(repr=False)
    identities: IdentityTable
    people: UserStore
    clock: Clock
    monotonic: Clock
    scopes: str = "openid profile email"
    naming: Naming = field(default_factory=Naming)
    membership: Membership = field(default_factory=Membership)
    #: Makes a user of the lab of somebody new; None: only who is one already may come in.
    enroll: Callable[[str], User] | None = None
    #: Whether a user whom nobody is linked to is linked to who comes with their name.
    links_by_name: bool = True
    new_incident: Callable[[], str] = lambda: secrets.token_hex(6)
    _flows: Flows = field(init=False, repr=False)
    _of_addresses: Tries = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_flows", Flows(self.key, self.clock))
        object.__setattr__(self, "_of_addresses", Tries(most=30, again=10.0, monotonic=self.monotonic))

    # ---- to the provider

    def begin(self, after: str) -> tuple[Flow, str]:
        """A sign-in of this browser, and where it goes (OpenID Connect Core 1.0, 3.1.2.1). Raises `Unavailable`."""
        try:
            place = self.provider.metadata().authorization_endpoint
        except ProviderFailed as error:
            raise self._down(error) from error
        flow = self._flows.begin(after)
        asked = {
            "response_type": "code",
            "client_id": self.provider.client.id,
            "redirect_uri": self.redirect_uri,
            "scope": self.scopes,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": flow.challenge,
            "code_challenge_method": "S256",
        }
        return flow, f"{place}{'&' if '?' in place else '?'}{urlencode(asked)}"

    # ---- and back

    def opened(self, answer: Sequence[tuple[str, str]], cookie: str) -> tuple[Flow, Mapping[str, str]]:
        """The sign-in that an answer is for, and the answer; that sign-in is over. Raises `Unauthenticated`."""
        values: dict[str, str] = {}
        for name, value in answer:
            if name in _ANSWER:
                if name in values:
                    raise Unauthenticated(f'The answer of {self.name} names "{name}" twice. Press the button again.')
                values[name] = value
        return self._flows.end(cookie, values.get("state", "")), values

    def finish(
        self, flow: Flow, answer: Mapping[str, str], address: str, tried: Callable[[str], None] = lambda _subject: None
    ) -> Arrived:
        """Who came back; `tried` hears whom they are said to be.

        Raises `Unauthenticated`, `Denied` for who may not come in, `Unavailable`, `TooMany`.
        """
        self._of_addresses.take(place := network_of(address))
        try:
            said = self._said(flow, answer)
        except Unavailable:
            self._of_addresses.give_back(place)
            raise
        self._of_addresses.give_back(place)
        identity = self._identity(said, tried)
        given = self._give(identity, said)

        def confirm() -> None:
            found = self.identities.find(identity.issuer, identity.sub)
            if found is None or found.subject != identity.subject:
                raise Unauthenticated("An administrator has ended this way of signing in for you just now.")

        return Arrived(Proof(identity.subject, confirm), flow.after, given.words if given is not None else "")

    def _said(self, flow: Flow, answer: Mapping[str, str]) -> _Said:
        """What the provider says of them, once every check is passed."""
        try:
            metadata = self.provider.metadata()
            said = answer.get("iss")
            if (said is None and metadata.names_itself) or (said is not None and said != metadata.issuer):
                raise Rejected(f'the answer is from "{shown(said)}" (RFC 9207)')
            if "error" in answer:
                raise Refused(answer["error"], shown(answer.get("error_description", "")))
            code = answer.get("code", "")
            if not code or len(code) > _LONGEST_CODE:
                raise Rejected("the answer has no code")
            token, access = self.provider.redeem(code, flow.verifier, self.redirect_uri)
            expected = Expected(
                issuer=metadata.issuer,
                client_id=self.provider.client.id,
                nonce=flow.nonce,
                algorithms=metadata.algorithms,
            )
            claims = check_id_token(token, self.provider.keys, expected, now=self.clock())
            more = self.provider.userinfo(access, claims["sub"]) if access is not None and self._wants_more(claims) else {}
        except ProviderFailed as error:
            raise self._down(error) from error
        except Refused as error:
            raise self._refused(error) from error
        except Rejected as error:
            incident = self.new_incident()
            _log.warning("incident %s: an answer of %s was not accepted: %s.", incident, self.provider.issuer, error)
            raise Unauthenticated(
                f"The lab did not accept the answer of {self.name}. Try again; an administrator finds the reason in the lab's "
                f"log by its number: {incident}."
            ) from error
        return _Said(str(claims["sub"]), (claims, more))

    def _wants_more(self, claims: Mapping[str, Any]) -> bool:
        """Whether the ID token lacks what the lab asks for: many providers say it in userinfo alone."""
        wanted = [*self.naming.needs, *([self.membership.claim] if self.membership.asked else [])]
        return any(claim_of(claims, name) is None for name in wanted)

    # ---- who that is here

    def _identity(self, said: _Said, tried: Callable[[str], None]) -> Identity:
        issuer, sub = self.provider.issuer, said.sub
        found = self.identities.find(issuer, sub)
        if found is None:
            name = self.naming.name(said.having(*self.naming.needs), self.name)
            if self.people.get(name) is not None:
                tried(name)
            found = self._link(issuer, sub, name)
        tried(found.subject)
        user = self.people.get(found.subject)
        if user is not None:
            check_state(user)
        return found

    def _link(self, issuer: str, sub: str, name: str) -> Identity:
        """The first time: by their name, which counts this once."""
        user = self.people.get(name)
        if user is not None:
            check_state(user)
            if not self.links_by_name:
                raise Denied(
                    f'There is a user "{name}" of this lab already, who may be somebody else: {self.name} is not linked to them.',
                    remedy="Sign in another way, or ask an administrator.",
                )
        elif self.enroll is None:
            raise Denied(f"{name} is no user of this lab.", remedy=f"Ask an administrator: `carrel user add {name}`.")
        else:
            self.enroll(name)
            _log.info("%s is a user of the lab from now on, by %s.", name, issuer)
        if not self.identities.link(name, issuer, sub, now=self.clock()):
            _log.warning("%s at %s has the name of %s, who is linked to another person there.", shown(sub), issuer, name)
            raise Denied(
                f'The user "{name}" of this lab is linked to another person at {self.name}.',
                remedy=f"If that was you, with an account that you have no more: ask an administrator for "
                f"`carrel user reset {name}`.",
            )
        _log.info("%s is %s at %s from now on.", name, shown(sub), issuer)
        found = self.identities.find(issuer, sub)
        if found is None:
            raise Unauthenticated("An administrator has ended this way of signing in for you just now.")
        return found

    def _give(self, identity: Identity, said: _Said) -> Given | None:
        groups = self.membership.groups(said.having(self.membership.claim)) if self.membership.asked else frozenset()
        role, accounts = self.membership.role(groups), self.membership.accounts_of(groups)
        given = self.identities.give(identity, role, accounts, now=self.clock())
        if given is not None and given.words:
            _log.info("By the groups of %s at %s: %s.", identity.subject, identity.issuer, given.words)
        if given is not None and given.kept:
            _log.info("The role of %s stays %s: %s.", identity.subject, given.role, given.kept)
        return given

    # ---- what goes wrong

    def _down(self, error: ProviderFailed) -> Unavailable:
        incident = self.new_incident()
        _log.error("incident %s: sign-in through %s failed: %s.", incident, self.provider.issuer, error)
        return Unavailable(
            f"{self.name} cannot be used at this moment.",
            remedy="Try again, or sign in another way. An administrator finds the reason in the lab's log by its number: "
            f"{incident}; `carrel doctor` looks too.",
        )

    def _refused(self, error: Refused) -> Unauthenticated:
        incident = self.new_incident()
        code = error.code if _ERROR.match(error.code) else "an error"
        _log.warning("incident %s: %s refused a sign-in: %s %s", incident, self.provider.issuer, shown(code), error.description)
        if code == "access_denied":
            return Unauthenticated(f"{self.name} did not let you in, or you broke off there (incident {incident}).")
        return Unauthenticated(
            f"{self.name} refused the sign-in ({code}). Try again; an administrator finds more in the lab's log by the number "
            f"{incident}."
        )
