"""Sign-in by the accounts of the lab's machine (PAM): a Unix user is the lab's user of the same name."""

from __future__ import annotations

import json
import logging
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from carrel.core.control.user_port import UserStore
from carrel.core.domain.errors import Denied, TooMany, Unauthenticated, Unavailable
from carrel.core.domain.user import User
from carrel.lab.credentials.local import LocalSignIn
from carrel.lab.credentials.passwords import LONGEST

#: Names that useradd(8) makes, and those with a domain behind them.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,254}\Z")
_PROGRAM = Path(__file__).with_name("pam_process.py")
#: Seconds that PAM has; a directory far away may be slow.
_PATIENCE = 30.0
#: Questions at once, and seconds that a further one waits.
_AT_ONCE, _TURN = 4, 10.0
_WRONG = "The name or the password is not right."
_log = logging.getLogger("carrel.lab.credentials")


@dataclass(frozen=True, slots=True, kw_only=True)
class PamService:
    """Asks PAM. Thread-safe; blocks."""

    #: The name of its file, such as "carrel" for /etc/pam.d/carrel.
    service: str
    #: Where that file is, if not where the system has its own.
    directory: str = ""
    patience: float = _PATIENCE
    _turns: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_AT_ONCE), init=False, repr=False, compare=False
    )

    def accepts(self, user: str, password: str) -> bool:
        """Whether it is the user's password, and the account may be used now. Raises `Unavailable` when PAM fails to answer."""
        if not self._turns.acquire(timeout=_TURN):
            raise TooMany("Too many people sign in at this moment.", remedy="Try again in a moment.", retry_after=5)
        try:
            told = self._ask({"service": self.service, "user": user, "password": password, "directory": self.directory})
        finally:
            self._turns.release()
        if told.get("broken"):
            raise Unavailable(str(told["reason"]), remedy="An administrator installs libpam and the Python package pamela.")
        if told["right"] is not True:
            _log.info("PAM (%s) refused %s: %s", self.service, user, told["reason"])
        return told["right"] is True

    def _ask(self, asked: dict[str, str]) -> dict[str, object]:
        process = subprocess.Popen(
            [sys.executable, "-I", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},  # nothing of the lab's, secrets least of all
            start_new_session=True,
        )
        with process:
            try:
                said, _ = process.communicate(json.dumps(asked).encode() + b"\n", timeout=self.patience)
            except BaseException as error:
                with suppress(ProcessLookupError):  # with what its modules have started
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                said = b""
        try:
            told: dict[str, object] = json.loads(said.partition(b"\n")[0])
        except ValueError:
            _log.error("PAM (%s) gave no answer within %g s; exit status %s.", self.service, self.patience, process.returncode)
            raise Unavailable(
                "PAM gave no answer.", remedy="Try again; an administrator finds more in the lab's log and the system's."
            ) from None
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class PamSignIn:
    """Who signs in by their account on the lab's machine. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    pam: PamService
    people: UserStore
    #: Its limits of wrong tries are these ones', too.
    local: LocalSignIn
    #: Makes a user of the lab of somebody new; None: only who is one already may come in.
    enroll: Callable[[str], User] | None = None

    def by_password(self, name: str, password: str, address: str) -> str:
        """The subject of who has this name and this password on the machine; never root."""
        with self.local.tries(name, address):
            if not self._is_person(name) or not _sendable(password) or not self.pam.accepts(name, password):
                raise Unauthenticated(_WRONG, remedy="Try again: it is the password of your account on the lab's machine.")
        if self.people.get(name) is not None:
            return name
        if self.enroll is None:
            raise Denied(f"{name} is no user of this lab.", remedy=f"Ask an administrator: `carrel user add {name}`.")
        _log.info("%s is a user of the lab from now on, by PAM.", name)
        return self.enroll(name).subject

    @staticmethod
    def _is_person(name: str) -> bool:
        """Whether it is the name, as the machine writes it, of a user other than root."""
        if not _NAME.match(name):
            return False
        try:
            found = pwd.getpwnam(name)
        except (KeyError, ValueError, OSError):
            return False
        return found.pw_name == name and found.pw_uid != 0


def _sendable(password: str) -> bool:
    """Whether it goes through C's strings whole."""
    return bool(password) and "\0" not in password and len(password.encode("utf-8", "surrogatepass")) <= LONGEST
