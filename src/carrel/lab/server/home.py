"""The lab's home directory: where everything of one lab lies, for its owner's eyes only."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from carrel.core.domain.errors import Conflict, Denied, Invalid, Unavailable
from carrel.core.spool.strict import check_file, trusted_directory

#: The key that launches are signed with, and the one that is to follow it.
SIGNING_KEY, NEXT_SIGNING_KEY = "signing.key", "signing.key.next"


@dataclass(frozen=True, slots=True)
class LabHome:
    """Names of the files and directories of one lab."""

    path: Path

    @property
    def settings(self) -> Path:
        """The administrator's file."""
        return self.path / "carrel.toml"

    @property
    def token(self) -> Path:
        """The token of the user who started the lab, mode 0600; the command line finds it here."""
        return self.path / "token"

    @property
    def address(self) -> Path:
        """Where the running lab listens, as JSON; absent while none runs."""
        return self.path / "address.json"

    @property
    def tls(self) -> Path:
        """The lab's own certificate authority, where it has one."""
        return self.path / "tls"

    @property
    def whereabouts(self) -> Path:
        """Where this home was when a lab ran in it last, as JSON."""
        return self.path / "whereabouts.json"

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.path / "lab.db"

    @property
    def trusted(self) -> Path:
        """There when an administrator has said that all users may be trusted with the whole lab."""
        return self.path / "trusted"

    @property
    def audit(self) -> Path:
        """Who did what, in files of lines."""
        return self.path / "audit"

    @property
    def snapshots(self) -> Path:
        """Code, content-addressed."""
        return self.path / "snapshots"

    @property
    def environments(self) -> Path:
        """Environments, content-addressed."""
        return self.path / "environments"

    @property
    def blobs(self) -> Path:
        """Stored outputs, content-addressed."""
        return self.path / "blobs"

    @property
    def spool(self) -> Path:
        """One directory for each attempt of each job."""
        return self.path / "spool"

    @property
    def calls(self) -> Path:
        """Large arguments and results of calls."""
        return self.path / "calls"

    @property
    def files(self) -> Path:
        """One directory for each user's own files, which their sessions work on."""
        return self.path / "files"

    @property
    def challenges(self) -> Path:
        """One directory for each version of each challenge."""
        return self.path / "challenges"

    @property
    def broker(self) -> Path:
        """What the node's broker remembers."""
        return self.path / "broker"

    @property
    def reports(self) -> Path:
        """What the brokers of a cluster's nodes say."""
        return self.path / "reports"

    @property
    def parts(self) -> Mapping[str, Path]:
        """Parts that may lie on other disks, by what they are called."""
        return {
            "spool": self.spool,
            "snapshots": self.snapshots,
            "outputs": self.blobs,
            "environments": self.environments,
            "files": self.files,
            "calls": self.calls,
            "logs": self.logs,
        }

    @property
    def run(self) -> Path:
        """Sockets."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        """Logs of the lab's own processes."""
        return self.path / "logs"

    @property
    def _directories(self) -> tuple[Path, ...]:
        return (
            self.snapshots,
            self.environments,
            self.blobs,
            self.spool,
            self.files,
            self.challenges,
            self.calls,
            self.broker,
            self.reports,
            self.run,
            self.logs,
        )

    def create(self) -> None:
        """Make what is missing, readable by its owner alone."""
        try:
            for directory in (self.path, *self._directories):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.chmod(0o700)
        except OSError as error:
            raise Unavailable(
                f"The lab's home {self.path} cannot be made: {error.strerror}.",
                remedy="Choose another with --home or CARREL_HOME.",
            ) from error

    def check(self) -> None:
        """Raise `Denied` when other Unix users could put something in the place of the home, a part of it or its settings.

        Parts that are not there yet are passed over.
        """
        try:
            for directory in (self.path, *self._directories):
                if os.path.lexists(directory):
                    trusted_directory(directory)
            if os.path.lexists(self.settings):
                check_file(self.settings)
        except Denied as error:
            raise Denied(
                f"The lab's home is not safe from other users of this machine: {error.message}",
                remedy=f"{error.remedy}. Where all of them are trusted: carrel up --no-strict-modes",
            ) from error
        except OSError as error:
            raise Unavailable(f"{self.settings} cannot be read: {error.strerror}.") from error

    def lock(self) -> int:
        """Hold the lab for this process until it ends; raises `Conflict` while another server has it."""
        descriptor = os.open(self.path / "lab.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            where = self.read_address() or "an address that it has not written yet"
            raise Conflict(
                f"A lab is running in {self.path} already, at {where}.",
                remedy="Use that one, or start a second lab with another --home.",
            ) from None
        return descriptor

    def secret(self) -> bytes:
        """The key of the job tokens; made when first asked, mode 0600."""
        return bytes.fromhex(_once(self.path / "secret", lambda: secrets.token_hex(32)))

    def signing_key(self, make: Callable[[], bytes]) -> bytes:
        """The key by which the lab's orders are known; made by `make` when first asked, mode 0600.

        Raises `Denied` where others can read it: they can sign in the lab's name.
        """
        return self._private_key(self.path / SIGNING_KEY, make)

    def next_signing_key(self, make: Callable[[], bytes]) -> bytes:
        """The key that is to follow it; the same rules."""
        return self._private_key(self.path / NEXT_SIGNING_KEY, make)

    def use_next_signing_key(self) -> None:
        """The next key takes the place of the present one, which is gone. Raises `Conflict` without one."""
        try:
            (self.path / NEXT_SIGNING_KEY).replace(self.path / SIGNING_KEY)
        except FileNotFoundError as error:
            raise Conflict("There is no next key.", remedy="carrel signing-key next makes it") from error

    @staticmethod
    def _private_key(path: Path, make: Callable[[], bytes]) -> bytes:
        with suppress(FileNotFoundError):
            found = path.stat()
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                mode = f"{stat.S_IMODE(found.st_mode):03o}"
                raise Denied(
                    f"{path} belongs to uid {found.st_uid} and has mode {mode}: others may have read it and can sign with it.",
                    remedy="chmod 600 it, then change it: carrel signing-key next",
                )
        try:
            return bytes.fromhex(_once(path, lambda: make().hex()))
        except ValueError as error:
            raise Invalid(f"{path} is no key: {error}.", remedy="Bring it back, or remove it: the lab makes another.") from error

    def first_token(self, make: Callable[[], str]) -> str:
        """The token in the token file; made by `make` when there is none."""
        return _once(self.token, make)

    def read_address(self) -> str | None:
        """URL of the lab that was started here last, or None."""
        try:
            return str(json.loads(self.address.read_text())["url"])
        except (OSError, ValueError, KeyError):
            return None

    def read_port(self) -> int | None:
        """Port on which a lab listened here last, or None."""
        try:
            return int((self.path / "port").read_text())
        except (OSError, ValueError):
            return None

    def read_settings_in_force(self) -> Mapping[str, Any]:
        """What the lab that runs here has said of its settings, which may come from its variables; nothing where none runs."""
        try:
            about = json.loads(self.address.read_text())
            return dict(about["settings"]) if Path(f"/proc/{int(about['pid'])}").exists() else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def write_address(self, url: str, authority: str = "", settings: Mapping[str, Any] | None = None) -> None:
        """Say where the lab listens, all at once, and remember the port; `authority` is the file with whom to trust for TLS.

        `settings` are those of which `carrel doctor` judges; the file goes when the lab stops.
        """
        write_private(self.path / "port", f"{urlsplit(url).port or ''}\n")
        about: dict[str, Any] = {"url": url, "pid": os.getpid(), "home": str(self.path), "inode": self.path.stat().st_ino}
        about["settings"] = dict(settings or {})
        if authority:
            about["authority"] = authority
        write_private(self.address, json.dumps(about) + "\n")


def _once(path: Path, make: Callable[[], str]) -> str:
    try:
        path.chmod(0o600)
        text = path.read_text().strip()
    except FileNotFoundError:
        text = ""
    if not text:
        text = make()
        write_private(path, text + "\n")
    return text


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 that is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)
