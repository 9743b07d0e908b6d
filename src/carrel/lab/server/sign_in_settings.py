"""The table `sign_in` of `carrel.toml`: ways of signing in beside those that every lab has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.lab.server.oidc_settings import OidcSettings, read_oidc
from carrel.lab.server.toml import Setting, convert, known

#: Settings of `[sign_in.pam]`.
PAM: tuple[Setting, ...] = (
    Setting("service", "text", None, "Name of the PAM service, which is the name of its file."),
    Setting("admit", "text", "known", "Who may come in: users of the lab (known), or everybody, who become users by it."),
    Setting("directory", "text", "", "Directory of the service's file; without it the system's own (/etc/pam.d)."),
)
_ADMITS = ("known", "everybody")
_SYSTEM = ("/etc/pam.d", "/usr/lib/pam.d", "/usr/etc/pam.d", "/lib/pam.d")


@dataclass(frozen=True, slots=True, kw_only=True)
class PamSettings:
    """How PAM is asked."""

    service: str
    admit: str = "known"
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInSettings:
    """What the table says; None for a way that it does not name."""

    pam: PamSettings | None = None
    oidc: OidcSettings | None = None


def read_sign_in(table: Any, where: str) -> SignInSettings:
    """Read the table. Raises `Invalid` with the place."""
    if not isinstance(table, Mapping):
        raise Invalid(f"{where}: sign_in is {table!r}.", remedy='It is a table: [sign_in.pam] with service = "carrel".')
    for name in table:
        known(name, {"pam": None, "oidc": None}, f"{where}: sign_in")
    return SignInSettings(
        pam=_pam(table["pam"], f"{where}: sign_in.pam") if "pam" in table else None,
        oidc=read_oidc(table["oidc"], f"{where}: sign_in.oidc") if "oidc" in table else None,
    )


def _pam(table: Any, where: str) -> PamSettings:
    if not isinstance(table, Mapping):
        raise Invalid(f"{where} is {table!r}.", remedy='It is a table: [sign_in.pam] with service = "carrel".')
    by_name = {setting.name: setting for setting in PAM}
    values = {setting.name: setting.default for setting in PAM}
    for name, value in table.items():
        values[name] = convert(by_name[known(name, by_name, where)], value, f"{where}.{name}")
    service, admit, directory = values["service"], values["admit"], values["directory"]
    if not service or not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", service):
        raise Invalid(f"{where}.service is {service!r}.", remedy='Name a PAM service, such as service = "carrel".')
    if admit not in _ADMITS:
        raise Invalid(f"{where}.admit is {admit!r}.", remedy=f"It is one of {', '.join(_ADMITS)}.")
    if directory and not Path(directory).is_absolute():
        raise Invalid(f"{where}.directory is {directory!r}.", remedy="Give an absolute path.")
    # PAM takes the service "other" where there is no file, and that lets in whom somebody else meant.
    if not any(Path(place, service).is_file() for place in ((directory,) if directory else _SYSTEM)):
        raise Invalid(
            f"{where}.service is {service!r}, and there is no file {Path(directory or _SYSTEM[0], service)}.",
            remedy="Make it (docs/sign-in-local.md shows one), or leave the table out.",
        )
    return PamSettings(service=service, admit=admit, directory=directory)
