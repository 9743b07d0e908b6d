"""Which Unix user a user of the lab is on the cluster. Who has none starts nothing there."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Denied, Invalid, Unavailable
from carrel.core.domain.ports import Clock
from carrel.core.spool.strict import check_file, open_trusted
from carrel.core.submission.own_name import own_name

#: What `slurm_identity` may be.
FORMS = '"owner", "lab", "same", "map:FILE" or "command:PROGRAM"'
#: How deputies are started where nothing else is said: by the one rule that sudo has for it.
CONFIGURATION = "/etc/carrel/deputy.toml"
#: useradd(8): names that look different from options and numbers.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
#: Seconds that a command has, and for which its answer holds.
_PATIENCE, _HOLDS = 10.0, 60.0
_ASK = "Ask the lab's administrator for a user of the cluster."


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How users of the lab become users of the cluster (`slurm_identity`)."""

    #: "owner": only the person who runs the lab, as themselves. "lab": everybody as the lab's own user. "same", "map", "command".
    kind: str
    #: The file or the program.
    path: str = ""

    @property
    def deputies(self) -> bool:
        """True when jobs may run as other users than the lab's own."""
        return self.kind in ("same", "map", "command")

    def describe(self) -> str:
        """One phrase for administrators."""
        own = own_name()
        return {
            "owner": f"only {own}, who runs the lab, may use the cluster, as themselves",
            "lab": f"everybody's jobs run as {own}",
            "same": "jobs run as the Unix user whose name is their owner's",
            "map": f"jobs run as the Unix users that {self.path} names",
            "command": f"jobs run as the Unix users that {self.path} names",
        }[self.kind]


def read_identity(text: str) -> Identity:
    """Return what `slurm_identity` says. Raises `Invalid`."""
    kind, colon, path = text.partition(":")
    if kind in ("map", "command") and path.startswith("/"):
        return Identity(kind=kind, path=path)
    if kind in ("owner", "lab", "same") and not colon:
        return Identity(kind=kind)
    raise Invalid(f'slurm_identity is "{text}".', remedy=f"It is one of {FORMS}, with a whole path.")


def deputy_command(template: str | None, user: str) -> Sequence[str]:
    """Return the command that starts the deputy of `user`; `template` is `slurm_deputy`. Raises `Invalid`."""
    default = ["sudo", "-n", "-u", "{user}", "--", str(Path(sys.prefix) / "bin" / "carrel-deputy"), "--config", CONFIGURATION]
    words = shlex.split(template) if template else default
    if not any("{user}" in word for word in words):
        raise Invalid(f'slurm_deputy is "{template}".', remedy='It has to name "{user}".')
    return [word.replace("{user}", user) for word in words]


class UnixUsers:
    """Maps users of the lab. Thread-safe."""

    def __init__(self, identity: Identity, *, as_lab: bool = False, monotonic: Clock = time.monotonic) -> None:
        """`as_lab`: others than who runs the lab may be the lab's own user, too."""
        self._identity = identity
        self._as_lab = as_lab
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._file: tuple[float, dict[str, str]] | None = None
        self._answers: dict[str, tuple[float, str | None]] = {}

    def of(self, subject: str) -> str:
        """Return the Unix user of `subject`, "" for the lab's own.

        Raises `Denied` for who has none, and `Unavailable` when that cannot be found out now.
        """
        if self._identity.kind == "lab":
            return ""
        if self._identity.kind == "owner":
            if subject == own_name():
                return ""
            raise Denied(
                f"{subject} has no user on the cluster: only the person who runs this lab has one.",
                remedy="An administrator can change that (slurm_identity).",
            )
        name = {"same": self._same, "map": self._mapped, "command": self._told}[self._identity.kind](subject)
        if name is None:
            raise Denied(f"{subject} has no user on the cluster.", remedy=_ASK)
        return self._checked(subject, name)

    def _checked(self, subject: str, name: str) -> str:
        try:
            account = pwd.getpwnam(name) if _NAME.fullmatch(name) else None
        except KeyError:
            account = None
        if account is None:
            raise Denied(f'{subject} would be "{name}" on the cluster, whom this machine does not know.', remedy=_ASK)
        if account.pw_uid == 0:
            raise Denied(f"{subject} would be root on the cluster.", remedy="Nobody is.")
        if account.pw_uid != os.geteuid():
            return name
        if subject != own_name() and not self._as_lab:
            raise Denied(
                f"{subject} would be {name} on the cluster, who runs the lab and can read all that is in it.", remedy=_ASK
            )
        return ""

    def _same(self, subject: str) -> str | None:
        try:
            return pwd.getpwnam(subject).pw_name if _NAME.fullmatch(subject) else None
        except KeyError:
            return None

    def _mapped(self, subject: str) -> str | None:
        path = Path(self._identity.path)
        with self._lock:
            try:
                with os.fdopen(open_trusted(path), "rb") as file:
                    changed = os.fstat(file.fileno()).st_mtime
                    table = tomllib.load(file) if self._file is None or self._file[0] != changed else None
                if table is not None:
                    if not all(isinstance(name, str) for name in table.values()):
                        raise Unavailable(
                            f"{path}: a value is not a text.", remedy='Write it like "alice@example.org" = "alice".'
                        )
                    self._file = (changed, table)
            except Denied as error:
                raise _untrusted(error) from error
            except (OSError, ValueError) as error:
                raise Unavailable(f"{path} cannot be read: {error}.", remedy="It says who is who on the cluster.") from error
            return self._file[1].get(subject) if self._file else None

    def _told(self, subject: str) -> str | None:
        with self._lock:
            known = self._answers.get(subject)
        if known is not None and self._monotonic() - known[0] < _HOLDS:
            return known[1]
        program = self._identity.path
        try:
            check_file(Path(program))
            done = subprocess.run(
                [program, "--", subject], capture_output=True, text=True, timeout=_PATIENCE, check=False, cwd="/"
            )
        except Denied as error:
            raise _untrusted(error) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{program} does not say who {subject} is: {error}.") from error
        lines = done.stdout.split()
        if done.returncode not in (0, 1) or (done.returncode == 0 and len(lines) != 1):
            said = done.stderr.strip() or done.stdout.strip() or "nothing"
            raise Unavailable(f"{program} ended with {done.returncode} and said: {said[:200]}")
        answer = lines[0] if done.returncode == 0 else None
        with self._lock:
            self._answers[subject] = (self._monotonic(), answer)
        return answer


def _untrusted(error: Denied) -> Unavailable:
    """Somebody who can change this mapping can act as any user on the cluster."""
    return Unavailable(f"The mapping of users to the cluster's is not trusted: {error.message}", remedy=error.remedy)
