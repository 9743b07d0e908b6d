"""The broker's process as the lab's server sees it: started once, adopted after that, started again when it dies.

It is in a session of its own and outlives the server. Its lock file says which one it is; one of another release or with another
configuration is asked to end and replaced, which no running cell notices: leases are in the journal.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.ports import Clock
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.config import BrokerConfig, write_config
from carrel.node.broker.main import BUSY
from carrel.node.runner.tree import end_process

_log = logging.getLogger(__name__)

#: Seconds until a broker listens. The probe of a GPU driver may take long, once per boot.
START_SECONDS = 180.0
#: Seconds that a broker has to end when asked.
_END_SECONDS = 10.0
#: Seconds until a broker that died is started again: the first time, and the longest pause of one that dies again and again.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 10.0
#: A broker that lived for so long did not die of its start.
_SOUND_SECONDS = 30.0
#: Longest path of a unix socket (unix(7)), and what it is called in the directory.
_LONGEST_PATH = 107
SOCKET = "broker.sock"


@dataclass(frozen=True, slots=True)
class Running:
    """A broker that lives, by its lock file."""

    pid: int
    version: str
    digest: str


def running(state: Path) -> Running | None:
    """The broker that holds the lock of `state`, or None."""
    try:
        descriptor = os.open(state / "broker.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_locked(descriptor):
            return None
        about = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
        return Running(int(about["pid"]), str(about["version"]), str(about["digest"]))
    except (ValueError, KeyError, TypeError):
        return None  # it is being written this moment
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


class BrokerProcess:
    """Keeps one broker running, from a thread."""

    def __init__(
        self, run_dir: Path, config: BrokerConfig, *, log: Path | None = None, monotonic: Clock = time.monotonic
    ) -> None:
        self.socket = run_dir / SOCKET
        self._config = config
        self._state = Path(config.state)
        self._log_file = log or self._state / "broker.log"
        self._config_file = self._state / "config.json"
        self._monotonic = monotonic
        self._closing = threading.Event()
        self._reactor = Reactor(monotonic)
        self._pidfd = -1
        self._began = 0.0
        self._pause = _FIRST_PAUSE
        self._children: list[int] = []
        self._thread = threading.Thread(target=self._reactor.run, name="broker process", daemon=True)
        self.pid = 0

    def start(self) -> None:
        """Adopt the broker that runs, or start one; returns when it listens. Raises `Unavailable`."""
        if len(os.fsencode(self.socket)) > _LONGEST_PATH:
            raise Unavailable(
                f"The path of the broker's socket is too long: {self.socket}.", remedy="Choose a home with a shorter path."
            )
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ensure()
        self._watch()
        self._thread.start()

    def close(self) -> None:
        """Stop watching; the broker goes on."""
        self._closing.set()
        self._reactor.post(self._reactor.stop)
        if self._thread.is_alive():
            self._thread.join(timeout=_END_SECONDS)
        self._reactor.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def stop(self) -> None:
        """End the broker: for tests, and when the lab is taken down with its sessions. Leases stay in its journal."""
        self.close()
        found = running(self._state)
        if found is not None:
            _end(found.pid)
        self._reap()

    # --- one broker ---------------------------------------------------------------------------------------------------------

    def _ensure(self) -> None:
        """Make sure that the right broker runs and listens, and have its pidfd."""
        found = running(self._state)
        if found is not None and (found.version, found.digest) != (self._config.version, self._config.digest()):
            _log.info("the broker (process %d, version %s) is replaced", found.pid, found.version)
            _end(found.pid)
            found = None
        child = None if found is not None else self._spawn()
        deadline = self._monotonic() + START_SECONDS
        while True:
            found = running(self._state)
            if found is not None and listens(self.socket):
                break
            code = self._exit_code(child)
            if code is not None and code != BUSY:
                raise Unavailable(f"The broker ended with code {code}: {self._last_words()}", remedy=f"See {self._log_file}.")
            if found is None and (child is None or code == BUSY):
                child = self._spawn()  # the one that was there has ended meanwhile
            if self._monotonic() > deadline:
                raise Unavailable(f"The broker does not listen at {self.socket}.", remedy=f"See {self._log_file}.")
            self._closing.wait(0.01)
            if self._closing.is_set():
                return
        try:
            self._pidfd = os.pidfd_open(found.pid)
            self.pid = found.pid
        except ProcessLookupError:
            self._ensure()

    def _spawn(self) -> int:
        """Start a broker in a session of its own, and return its process id."""
        write_config(self._config_file, self._config)
        words = [sys.executable, "-m", "carrel.node.broker", "--config", str(self._config_file), "--socket", str(self.socket)]
        self._reap()
        log = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        try:
            # Not subprocess: it outlives us, and dropping a `Popen` of what still runs causes a warning.
            child = os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=True)
        finally:
            os.close(log)
        self._children.append(child)
        return child

    def _exit_code(self, child: int | None) -> int | None:
        """With which code our child ended; None while it lives, and for no child."""
        if child is None:
            return None
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return BUSY  # reaped before: it is not there any more
        if pid == 0:
            return None
        self._children.remove(child)
        return os.waitstatus_to_exitcode(status)

    def _reap(self) -> None:
        for child in list(self._children):
            self._exit_code(child)

    def _last_words(self) -> str:
        try:
            lines = self._log_file.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    # --- watching -----------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self._began = self._monotonic()
        if self._closing.is_set():
            self._reactor.stop()
        else:
            self._reactor.watch(self._pidfd, self._ended)

    def _ended(self) -> None:
        sound = self._monotonic() - self._began > _SOUND_SECONDS
        self._pause = _FIRST_PAUSE if sound else min(_LONGEST_PAUSE, 2 * self._pause)
        _log.warning("the broker (process %d) has ended; it is started again", self.pid)
        self._reactor.unwatch(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self._reactor.later(self._pause, self._again)

    def _again(self) -> None:
        try:
            self._ensure()
        except (Unavailable, OSError):
            _log.exception("the broker cannot be started")
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
            self._reactor.later(self._pause, self._again)
        else:
            self._watch()


def listens(path: Path) -> bool:
    """True when somebody takes connections there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        try:
            stream.connect(str(path))
        except OSError:
            return False
        return True


def _end(pid: int) -> None:
    """SIGTERM, then SIGKILL; returns when the process is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        end_process(descriptor, _END_SECONDS)
    finally:
        os.close(descriptor)
