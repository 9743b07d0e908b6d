"""Keeps one MLflow process running for as long as the lab runs.

MLflow's own launcher takes about 16 s and 500 MB with one worker, and 60 s and 2 GB as shipped; its ASGI application alone takes
8 s and 270 MB. That entry point reads variables that begin with an underscore, which is why MLflow is pinned to one version.
The process listens on a unix socket in a directory of mode 0700: the lab's authenticated proxy is the only way in.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import httpx

from carrel.core.domain.errors import Unavailable
from carrel.lab.tracking.artifacts import ArtifactStore
from carrel.node.runner.tree import end_process

#: Bytes that fit into sockaddr_un.sun_path (unix(7): 108) with its final zero and the ".new" of a socket not yet served.
_SOCKET_PATH_LIMIT = 103
_LOG_LIMIT = 10 * 1024**2
#: Seconds.
_START_LIMIT = 180.0
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
#: Starts in a row that fail before the server counts as failed, so that nobody is kept waiting for it.
_TRIES = 3
#: Where a model version may come from: the lab's own artifacts, or (a prompt) from nowhere.
_MODEL_SOURCES = r"^((mlflow-artifacts|runs|models):|dummy-source$|prompt-template$)"
_CHILD = Path(__file__).with_name("child.py")


class ServerState(StrEnum):
    """What MLflow is doing."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """State of the server, and why."""

    state: ServerState
    reason: str = ""


def default_database(home: Path) -> str:
    """URL of the database that MLflow keeps in a lab's home."""
    return f"sqlite:///{home.absolute() / 'mlflow' / 'mlflow.db'}"


class TrackingServer:
    """One MLflow server on the lab's own database, started again when it dies.

    All methods are thread-safe. `start` returns at once; the lab is usable meanwhile.
    """

    def __init__(self, home: Path, *, python: str, database_url: str | None = None) -> None:
        """`home` is the lab's home; `python` an interpreter that has MLflow; the default database is SQLite in the home."""
        self._home = home
        self._python = python
        self._database_url = database_url or default_database(home)
        self._changed = threading.Condition()
        self._status = ServerStatus(ServerState.STOPPED, "not started")
        self._listeners: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._pid: int | None = None
        self.socket = _socket_path(home)
        #: What MLflow keeps beside its database.
        self.artifacts = ArtifactStore(home.absolute() / "mlflow" / "artifacts", self._database_url)

    @property
    def status(self) -> ServerStatus:
        """What the server does now."""
        return self._status

    @property
    def pid(self) -> int | None:
        """Process id of MLflow, or None while there is none."""
        return self._pid

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from a thread of the server's, after each change of state; the result ends it."""
        with self._changed:
            self._listeners.append(callback)

        def end() -> None:
            with self._changed, contextlib.suppress(ValueError):
                self._listeners.remove(callback)

        return end

    def start(self) -> None:
        """Begin to start MLflow and keep it running; a server that is left over from a killed lab is ended first."""
        if self._thread is not None:
            return
        for directory in (self._home / "mlflow", self._home / "mlflow" / "artifacts", self._home / "logs", self._home / "run"):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _private_directory(self.socket.parent)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._set(ServerState.STARTING, "MLflow is starting; that takes about 10 s")
        self._thread = threading.Thread(target=self._supervise, name="mlflow", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End MLflow and wait until it is gone: politely first, by force after 10 s."""
        thread = self._thread
        if thread is None:
            return
        os.eventfd_write(self._wake, 1)
        thread.join()
        os.close(self._wake)
        self._thread = None
        with contextlib.suppress(OSError):
            self.socket.parent.rmdir()
        self._set(ServerState.STOPPED, "stopped with the lab")

    def wait_ready(self, timeout: float) -> bool:
        """Wait until the server is ready, at most `timeout` seconds; say whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self._status.state is ServerState.READY, timeout)
            return self._status.state is ServerState.READY

    def _set(self, state: ServerState, reason: str = "") -> None:
        with self._changed:
            self._status = ServerStatus(state, reason)
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _supervise(self) -> None:
        # This thread starts the process and outlives it: PR_SET_PDEATHSIG speaks of the thread, not of the process.
        failures = 0
        while True:
            began = time.monotonic()
            reason = self._live()
            if reason is None:
                return
            failures = 0 if self._status.state is ServerState.READY and time.monotonic() - began > 60 else failures + 1
            pause = _PAUSES[min(failures, len(_PAUSES)) - 1] if failures else 0.5
            state = ServerState.FAILED if failures >= _TRIES else ServerState.STARTING
            self._set(state, f"{reason}; MLflow is started again in {pause:g} s. Its log is {self._home / 'logs' / 'mlflow.log'}")
            if _readable([self._wake], pause):
                return

    def _live(self) -> str | None:
        """One life of the process. Returns why it ended, or None when it was asked to."""
        try:
            _end_leftover(self._lock_file)
            with self._process() as (process, pidfd, ready):
                return self._watch(process, pidfd, ready)
        except (OSError, Unavailable) as error:
            return f"MLflow could not be started: {error}"

    def _watch(self, process: subprocess.Popen[bytes], pidfd: int, ready: int) -> str | None:
        woken = _readable([self._wake, pidfd, ready], _START_LIMIT)
        if not woken:
            return f"MLflow was not up after {_START_LIMIT:.0f} s"
        if ready in woken and pidfd not in woken and self._wake not in woken and os.read(ready, 16):
            try:
                self._probe()
            except httpx.HTTPError as error:
                return f"MLflow started but does not answer ({error})"
            self._set(ServerState.READY)
            woken = _readable([self._wake, pidfd], None)
        if self._wake in woken:
            return None
        code = process.wait()
        return f"MLflow was ended by signal {-code}" if code < 0 else f"MLflow ended with exit code {code}"

    def _probe(self) -> None:
        """Ask for something that needs the database: the first such call creates or upgrades its tables."""
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=_START_LIMIT) as client:
            client.get("http://localhost/health").raise_for_status()
            client.get("http://localhost/api/3.0/mlflow/workspaces").raise_for_status()
            path = "http://localhost/api/2.0/mlflow/experiments/search"
            client.post(path, json={"max_results": 1}, headers={"X-MLFLOW-WORKSPACE": "default"}).raise_for_status()

    @property
    def _lock_file(self) -> Path:
        return self._home / "run" / "mlflow.lock"

    @contextlib.contextmanager
    def _process(self) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
        log_path = self._home / "logs" / "mlflow.log"
        if log_path.exists() and log_path.stat().st_size > _LOG_LIMIT:
            log_path.replace(log_path.with_suffix(".log.1"))
        with contextlib.ExitStack() as stack:
            ready, ready_child = os.pipe()
            stack.callback(os.close, ready)
            try:
                log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, log)
                process = subprocess.Popen(
                    [
                        self._python,
                        "-P",
                        "-u",
                        str(_CHILD),
                        str(self.socket),
                        str(self._lock_file),
                        str(ready_child),
                        str(os.getpid()),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._home / "mlflow",
                    env=_environment(os.environ, self._database_url, self._home.absolute() / "mlflow" / "artifacts"),
                    pass_fds=(ready_child,),
                    start_new_session=True,
                )
            finally:
                os.close(ready_child)
            self._pid = process.pid
            pidfd = os.pidfd_open(process.pid)
            stack.callback(os.close, pidfd)
            try:
                yield process, pidfd, ready
            finally:
                end_process(pidfd)
                process.wait()
                self._pid = None
                self.socket.unlink(missing_ok=True)  # a request now fails at once


def _environment(outer: Mapping[str, str], database_url: str, artifacts: Path) -> dict[str, str]:
    """Environment of the MLflow process: nothing of the lab's own settings, nothing that turns MLflow into a client."""
    inherited = {key: value for key, value in outer.items() if not key.startswith(("MLFLOW_", "_MLFLOW_", "CARREL_", "PYTHON"))}
    return inherited | {
        "_MLFLOW_SERVER_FILE_STORE": database_url,
        "_MLFLOW_SERVER_REGISTRY_STORE": database_url,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(artifacts),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "MLFLOW_WORKSPACE_STORE_URI": database_url,
        "MLFLOW_ENABLE_WORKSPACES": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_SERVER_ALLOWED_HOSTS": "localhost",
        # MLflow would fetch what a model version points to.
        "MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX": _MODEL_SOURCES,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "PYTHONWARNINGS": "ignore",
    }


def _socket_path(home: Path) -> Path:
    """Where the socket lies: in the home, or in a private directory of its own when the home's path is too long."""
    path = home.absolute() / "run" / "mlflow" / "mlflow.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH_LIMIT:
        return path
    name = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"carrel-{os.getuid()}-{name}" / "mlflow.sock"
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        path = Path("/tmp") / path.parent.name / path.name
    return path


def _private_directory(path: Path) -> None:
    """Make the directory, mode 0700; refuse one that somebody else could have put there."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise Unavailable(f"{path} is not a directory of this user's.", remedy="Remove it, or choose a shorter CARREL_HOME.")
    path.chmod(0o700)


def _end_leftover(lock_file: Path) -> None:
    """End an MLflow that a killed lab has left behind: it still holds the lock."""
    try:
        lock = os.open(lock_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        # The process that holds the lock wrote its pid into the file, and lives: the pid cannot have been given to another
        # process.
        with contextlib.suppress(ValueError, ProcessLookupError):
            pidfd = os.pidfd_open(int(os.read(lock, 32)))
            try:
                end_process(pidfd)
            finally:
                os.close(pidfd)
    finally:
        os.close(lock)


def _readable(descriptors: list[int], timeout: float | None) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)]
