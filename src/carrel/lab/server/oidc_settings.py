"""The table `sign_in.oidc` of `carrel.toml`: the provider that people sign in through."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.provider import GROUP_ROLES, is_provider_address
from carrel.core.domain.user import Role
from carrel.lab.server.network import loopback
from carrel.lab.server.toml import Setting, convert, known

#: Settings of `[sign_in.oidc]`.
OIDC: tuple[Setting, ...] = (
    Setting("issuer", "text", None, "Address of the provider, exactly as it calls itself (https; http on the loopback alone)."),
    Setting("client_id", "text", None, "What the provider calls the lab."),
    Setting("client_secret_file", "text", "", "File with the client's secret, mode 0600; without it a public client."),
    Setting("name", "text", "your institute", 'What people call the provider: "Sign in with …".'),
    Setting("scopes", "text", "openid profile email", "What the lab asks the provider for; openid is one of them."),
    Setting("user_claim", "text", "preferred_username", "Claim that names the user of the lab, at the first sign-in alone."),
    Setting(
        "user_domain", "text", "", "Domain that the claim must end with (ada@example.org); the name is what stands before it."
    ),
    Setting("admit", "text", "known", "Who may come in: users of the lab (known), or everybody, who become users by it."),
    Setting(
        "link", "text", "", "Whether a user of the lab is linked to who first comes with their name: name, or never; by `admit`."
    ),
    Setting("groups_claim", "text", "groups", "Claim that lists groups; dots lead into it (realm_access.roles)."),
)
_ADMITS, _LINKS = ("known", "everybody"), ("name", "never")
TABLES = ("roles", "accounts")
_EXAMPLE = 'It is a table: [sign_in.oidc] with issuer = "https://…" and client_id = "carrel".'
_LONGEST_SECRET = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """How the provider is asked, and who its people are."""

    issuer: str
    client_id: str
    client_secret_file: str = ""
    name: str = "your institute"
    scopes: str = "openid profile email"
    user_claim: str = "preferred_username"
    user_domain: str = ""
    admit: str = "known"
    link: str = "name"
    groups_claim: str = "groups"
    roles: Mapping[str, Role] = field(default_factory=dict)
    accounts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def secret(self) -> str | None:
        """The client's secret; None: it has none. Raises `Invalid`."""
        return read_secret(self.client_secret_file) if self.client_secret_file else None


def read_oidc(table: Any, where: str) -> OidcSettings:
    """Read the table. Raises `Invalid` with the place."""
    if not isinstance(table, Mapping):
        raise Invalid(f"{where} is {table!r}.", remedy=_EXAMPLE)
    by_name = {setting.name: setting for setting in OIDC}
    values = {setting.name: setting.default for setting in OIDC}
    if "client_secret" in table:
        raise Invalid(f"{where}.client_secret: a secret does not belong there.", remedy="Put it in a file: client_secret_file.")
    for name, value in table.items():
        if known(name, {**by_name, **dict.fromkeys(TABLES)}, where) in by_name:
            values[name] = convert(by_name[name], value, f"{where}.{name}")
    _check_client(values, where)
    _check_people(values, where)
    roles = {group: _role(value, f"{where}.roles.{group}") for group, value in _table(table, "roles", where).items()}
    accounts = {group: _accounts(value, f"{where}.accounts.{group}") for group, value in _table(table, "accounts", where).items()}
    if values["client_secret_file"]:
        try:
            read_secret(values["client_secret_file"])
        except Invalid as error:
            raise Invalid(f"{where}.client_secret_file: {error.message}", remedy=error.remedy) from error
    return OidcSettings(**values, roles=roles, accounts=accounts)


def _check_client(values: dict[str, Any], where: str) -> None:
    issuer, client, name = values["issuer"], values["client_id"], values["name"]
    if not issuer or not is_provider_address(issuer) or "?" in issuer:
        raise Invalid(
            f"{where}.issuer is {issuer!r}.",
            remedy='Write the provider\'s own address, such as issuer = "https://id.example.org/realms/lab"; http is for the '
            "loopback alone.",
        )
    if not client or not client.isascii() or not client.isprintable():
        raise Invalid(f"{where}.client_id is {client!r}.", remedy="Write what the provider calls this lab.")
    if not name.strip() or len(name) > 60 or not name.isprintable():
        raise Invalid(f"{where}.name is {name!r}.", remedy="Use 1 to 60 printable characters.")
    if "openid" not in values["scopes"].split() or not values["scopes"].isascii():
        raise Invalid(f"{where}.scopes is {values['scopes']!r}.", remedy='Name openid among them: scopes = "openid profile".')


def _check_people(values: dict[str, Any], where: str) -> None:
    domain = values["user_domain"]
    if domain and not re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", domain):
        raise Invalid(f"{where}.user_domain is {domain!r}.", remedy='Write one domain, without @: user_domain = "example.org".')
    for name in ("user_claim", "groups_claim"):
        if not values[name]:
            raise Invalid(f"{where}.{name} is {values[name]!r}.", remedy="Name a claim of the provider's.")
    if values["admit"] not in _ADMITS:
        raise Invalid(f"{where}.admit is {values['admit']!r}.", remedy=f"It is one of {', '.join(_ADMITS)}.")
    values["link"] = values["link"] or ("name" if values["admit"] == "known" else "never")
    if values["link"] not in _LINKS:
        raise Invalid(f"{where}.link is {values['link']!r}.", remedy=f"It is one of {', '.join(_LINKS)}.")
    if values["admit"] == "known" and values["link"] == "never":
        raise Invalid(
            f'{where}.link is "never" and admit is "known": nobody new could ever come in.',
            remedy='Write link = "name", or admit = "everybody".',
        )


def _table(table: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, Mapping):
        raise Invalid(f"{where}.{name} is {found!r}.", remedy=f'It is a table: [sign_in.oidc.{name}] with "group" = "…".')
    return found


def _role(value: Any, where: str) -> Role:
    if not isinstance(value, str) or value not in GROUP_ROLES:
        raise Invalid(f"{where} is {value!r}.", remedy=f"It is one of {', '.join(GROUP_ROLES)}.")
    return Role(value)


def _accounts(value: Any, where: str) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one for one in listed):
        raise Invalid(f"{where} is {value!r}.", remedy="Name a research account of the lab, or a list of them.")
    return tuple(listed)


def check_oidc(oidc: OidcSettings, values: Mapping[str, Any], accounts: Mapping[str, Any]) -> None:
    """Raise `Invalid` unless the lab's other settings go with it: how people reach it, and its `accounts`."""
    if values["public_url"] is None and not loopback(values["host"]):
        raise Invalid(
            f"sign_in.oidc: the lab listens on {values['host']} and has no public_url: a provider sends people back to that.",
            remedy='Write public_url = "https://…", as people reach the lab.',
        )
    address = values["public_url"]
    if address is not None and not is_provider_address(address):
        raise Invalid(
            f'sign_in.oidc: public_url is "{address}", and what a provider sends back must not travel readable.',
            remedy="Begin it with https:// (docs/settings.md says how a lab gets TLS).",
        )
    for group, names in oidc.accounts.items():
        for name in names:
            if name not in accounts:
                near = get_close_matches(name, accounts, n=1)
                remedy = f'Did you mean "{near[0]}"?' if near else "Set it up in [accounts] (docs/settings.md)."
                raise Invalid(f'sign_in.oidc.accounts.{group}: there is no account "{name}".', remedy=remedy)


def read_secret(file: str) -> str:
    """The secret in a file that nobody else can read. Raises `Invalid`, and never says what is in it."""
    path = Path(file)
    if not path.is_absolute():
        raise Invalid(f"{file} is no absolute path.", remedy="Give an absolute path.")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.", remedy="Make it, with the client's secret in it.") from error
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise Invalid(f"{file} is no file.", remedy="Put the client's secret into one.")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise Invalid(
                f"{file} can be read or belongs to others (mode {stat.S_IMODE(found.st_mode):04o}).",
                remedy=f"chown it to the lab's Unix user, then chmod 600 {file}",
            )
        text = stream.read(_LONGEST_SECRET + 2)
    try:
        secret = text.decode("ascii").rstrip("\r\n")
    except UnicodeDecodeError:
        secret = ""
    if not secret or len(secret) > _LONGEST_SECRET or not secret.isprintable():
        raise Invalid(
            f"{file} holds no secret in one line of at most {_LONGEST_SECRET} characters.",
            remedy="Write the client's secret into it, as the provider gave it.",
        )
    return secret
