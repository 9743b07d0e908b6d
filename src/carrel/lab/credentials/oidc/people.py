"""Which user of the lab a person of the provider is, and what their groups stand for. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from carrel.core.domain.errors import Denied
from carrel.core.domain.provider import GROUP_ROLES
from carrel.core.domain.user import Role
from carrel.lab.credentials.oidc.failures import shown

#: Names that the lab takes from a provider.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}\Z")
_MOST_GROUPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """How a claim becomes the name of a user: as it is, or what stands before the one domain that the lab takes."""

    claim: str = "preferred_username"
    #: "": the whole claim is the name.
    domain: str = ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The claims that say it, together."""
        return (self.claim, "email_verified") if self.claim == "email" else (self.claim,)

    def name(self, claims: Mapping[str, Any], provider: str) -> str:
        """The name. Raises `Denied` for a claim that is none, in words for the person."""
        value = claim_of(claims, self.claim)
        ask = "Ask an administrator of the lab."
        if value is None:
            raise Denied(f'{provider} does not tell the lab who you are: there is no claim "{self.claim}".', remedy=ask)
        if not isinstance(value, str):
            raise Denied(f'What {provider} says in "{self.claim}" is no text.', remedy=ask)
        if self.claim == "email" and claims.get("email_verified") is not True:
            raise Denied(
                f"{provider} has not verified your e-mail address, by which this lab knows people.",
                remedy=f"Have it verified at {provider}, then sign in again.",
            )
        name = value
        if self.domain:
            name, at, domain = value.rpartition("@")
            if not at or domain.lower() != self.domain.lower() or "@" in name:
                raise Denied(f'"{shown(value)}" is not of {self.domain}, and this lab takes nobody else.', remedy=ask)
        if not NAME.match(name):
            raise Denied(
                f'"{shown(name)}" cannot be the name of a user of this lab.',
                remedy=f"Names have up to 255 letters (A to Z), digits and _ . @ + -; the first is a letter, a digit or _. {ask}",
            )
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What groups of the provider stand for in the lab."""

    claim: str = "groups"
    roles: Mapping[str, Role] = field(default_factory=dict)
    accounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def asked(self) -> bool:
        """Whether groups stand for anything here."""
        return bool(self.roles or self.accounts)

    def groups(self, claims: Mapping[str, Any]) -> frozenset[str]:
        """The groups of a person; none where the provider names none."""
        value = claim_of(claims, self.claim)
        listed = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        return frozenset(one for one in listed[:_MOST_GROUPS] if isinstance(one, str))

    def role(self, groups: frozenset[str]) -> Role | None:
        """The strongest role of the groups; None: they stand for none."""
        given = {self.roles[group] for group in groups if group in self.roles}
        return max(given, key=GROUP_ROLES.index, default=None)

    def accounts_of(self, groups: frozenset[str]) -> frozenset[str]:
        """The research accounts of the groups."""
        return frozenset(account for group in groups for account in self.accounts.get(group, ()))


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots between them ("realm_access.roles"); None: it is not there."""
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found
