"""Which lab, and as whom: arguments, then CARREL_URL, then the home directory, then the lab that was signed in to last.

The token for an address: CARREL_TOKEN, CARREL_TOKEN_FILE, what `carrel login` has kept, that of a home whose lab it is.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from carrel.client.credential import Credential
from carrel.client.stored_tokens import authority_file, kept, usual_lab
from carrel.core.domain.errors import Invalid, Unauthenticated, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Address of a lab and the token for it."""

    url: str
    token: str = field(repr=False)
    #: File (PEM) of who signs its certificates, where that is the lab itself; None: somebody whom this machine trusts.
    authority: Path | None = None
    #: The sign-in of which the token is, where it is one that `carrel login` keeps and that is renewed.
    renewed: Credential | None = field(default=None, repr=False)


def default_home(environment: Mapping[str, str]) -> Path:
    """CARREL_HOME, or ``carrel`` in the user's data directory (XDG Base Directory Specification)."""
    if environment.get("CARREL_HOME"):
        return Path(environment["CARREL_HOME"]).expanduser()
    data = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "carrel"


def locate(
    url: str | None = None, token: str | None = None, home: Path | None = None, environment: Mapping[str, str] = os.environ
) -> Lab:
    """Find lab and token. Raises `Unavailable` when no lab is known and `Unauthenticated` when there is no token."""
    remote = url or (environment.get("CARREL_URL") if home is None else None)
    directory = home or default_home(environment)
    if remote is None and home is None and not environment.get("CARREL_HOME") and not (directory / "address.json").exists():
        remote = usual_lab(environment)
    if remote:
        found = token or environment.get("CARREL_TOKEN") or _from_file(environment.get("CARREL_TOKEN_FILE"))
        address = check_address(remote)
        kept_one = None if found else kept_credential(address, environment)
        found = found or (kept_one.access_token if kept_one else None) or _own_token(directory, address)
        if not found:
            raise Unauthenticated(
                f"There is no token for {address}.", remedy=f"`carrel login {address}` keeps one; or set CARREL_TOKEN."
            )
        return Lab(
            url=address,
            token=_usable(found.strip(), "CARREL_TOKEN or its file"),
            authority=trusted(address, directory, environment),
            renewed=kept_one if kept_one is not None and kept_one.refresh_token is not None else None,
        )
    address = _running_in(directory)
    read = token or read_token(directory / "token")
    return Lab(url=address, token=_usable(read, "the token file"), authority=_own_authority(directory, address))


def trusted(address: str, home: Path, environment: Mapping[str, str]) -> Path | None:
    """File of who signs the certificates of the lab at `address`: CARREL_CA_FILE, what `carrel login --trust` has kept,
    that of a home whose lab it is; None: somebody whom this machine trusts."""
    if not address.startswith("https:"):
        return None
    if given := environment.get("CARREL_CA_FILE"):
        return Path(given)
    kept_file = authority_file(address, environment)
    return kept_file if kept_file.exists() else _own_authority(home, address)


def _own_authority(home: Path, address: str) -> Path | None:
    try:
        about = json.loads((home / "address.json").read_text())
        return Path(about["authority"]) if "authority" in about and check_address(str(about["url"])) == address else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, Invalid):
        return None


def read_token(path: Path) -> str:
    """The token in a file that only its owner may read."""
    try:
        with path.open(errors="replace") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read().strip()
    except OSError as error:
        raise Unauthenticated(
            f"The token file {path} cannot be read: {error.strerror}.", remedy="Run this as the user who started the lab."
        ) from error
    if mode & 0o077:
        raise Unauthenticated(
            f"Others may read the token file {path} (mode {mode:04o}).", remedy=f"Close it first: chmod 600 {path}"
        )
    if not text:
        raise Unauthenticated(f"The token file {path} is empty.", remedy="Start the lab again; it writes a new one.")
    return text


def kept_credential(url: str, environment: Mapping[str, str]) -> Credential | None:
    """What `carrel login` has kept for the lab at this address, or None. Raises `Unauthenticated` for what cannot be used."""
    found = kept(url, environment)
    if found is None:
        return None
    token, path = found
    if path is None:
        return Credential.of_text(token, "the keyring")
    return Credential.of_text(read_token(path), str(path))


def _own_token(home: Path, url: str) -> str | None:
    """The token of the lab in this home, where that is the one at this address."""
    try:
        return read_token(home / "token") if _running_in(home) == url else None
    except (Unavailable, Unauthenticated):
        return None


def _from_file(path: str | None) -> str | None:
    return read_token(Path(path).expanduser()) if path else None


def _running_in(home: Path) -> str:
    try:
        about = json.loads((home / "address.json").read_text())
        # A copied home has the address of the original, and its token.
        if about.get("inode") not in (None, home.stat().st_ino) and about.get("home") != str(home.expanduser().absolute()):
            raise Unavailable(
                f"No lab is running in {home}: its address is that of the lab in {about.get('home')}, of which it is a copy.",
                remedy="Start this one with `carrel up`, or name the other's home.",
            )
        return check_address(str(about["url"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(
            f"No lab is running in {home}.",
            remedy="Start one with `carrel up`, or set CARREL_URL and CARREL_TOKEN to reach another.",
        ) from error


def check_address(url: str) -> str:
    """The address of a lab as it is used. Raises `Invalid` for what is none."""
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        right = False
    if not right or " " in url:
        raise Invalid(f'"{url}" is not the address of a lab.', remedy="Write it like http://127.0.0.1:8642.")
    if parts.username is not None:
        raise Invalid(
            "The address of the lab holds a user name or password.", remedy="Leave it out; the token is in CARREL_TOKEN."
        )
    return url.rstrip("/")


def _usable(token: str, where: str) -> str:
    """A token goes into a header, where only some characters may stand (RFC 6750, 2.1)."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise Unauthenticated(f"What {where} holds is not a token.", remedy="Copy it again, whole and with nothing around it.")
    return token
