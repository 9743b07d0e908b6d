"""The engine's end of a nursery (`carrel.node.runner.nursery`)."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.errors import Unavailable
from carrel.core.domain.node import Device
from carrel.core.domain.ports import Clock
from carrel.node.devices.locks import DeviceLocks
from carrel.node.runner.nursery import MESSAGE

#: Seconds between two starts of a nursery.
_PAUSE = 1.0
#: How often a taken device is looked at before it counts as taken, and the seconds in between.
_LOOKS, _LOOK = 3, 0.002

_logger = logging.getLogger(__name__)

#: What a nursery, and with it the building of environments and the fetching of inputs, gets of the server's variables.
_PASSED = frozenset(
    {"HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "PATH", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "NETRC"}
)
_PASSED_PREFIXES = (
    "LC_",
    "UV_",
    "PIP_",
    "XDG_",
    "SSL_CERT_",
    "AWS_",
    "GOOGLE_",
    "AZURE_",
    "FSSPEC_",
    "PIXI_",
    "MAMBA_",
    "CONDA_",
)
_PASSED_SUFFIXES = ("_PROXY", "_CA_BUNDLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one request."""

    #: The attempt's directory, as in the request.
    directory: str
    #: Refers to the runner (pidfd_open(2)); the receiver of the answer closes it. -1 when there is none.
    pidfd: int = -1
    #: Why there is no runner, or "".
    error: str = ""


class NurseryLink:
    """One nursery process, and the socket to it. Never blocks."""

    def __init__(self, *, environ: Mapping[str, str], log: Path, options: Sequence[str] = ()) -> None:
        """Start it; requests may be sent at once. Raises `OSError` when it cannot be started."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, open(log, "ab") as messages:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "carrel.node.runner.nursery", *options],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=messages,
                    env=passed(environ),
                    cwd="/",
                    start_new_session=True,
                )
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    @property
    def pid(self) -> int:
        """The nursery's process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when there are answers, or when the nursery is gone."""
        return int(self._socket.fileno())

    def ask(self, directory: Path, locks: Sequence[int]) -> None:
        """Ask for a runner that holds `locks`. Raises `OSError` when the nursery is gone or its queue is full."""
        socket.send_fds(self._socket, [os.fsencode(directory)], locks)

    def answers(self) -> list[Answer] | None:
        """Return the answers that have come, or None when the nursery is gone."""
        found: list[Answer] = []
        while True:
            try:
                message, descriptors, _flags, _address = socket.recv_fds(self._socket, MESSAGE, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return found
            except OSError:
                message, descriptors = b"", []
            if not message:
                return found or None
            directory, _, rest = message.partition(b"\0")
            error = rest.removeprefix(b"\0").decode(errors="replace") if rest.startswith(b"\0") else ""
            found.append(Answer(directory=os.fsdecode(directory), pidfd=descriptors[0] if descriptors else -1, error=error))

    def close(self) -> None:
        """Let the nursery end, and wait for it; its runners go on."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
            return
        self._process.kill()
        self._process.wait()


class Nursery:
    """Keeps one nursery process; asks it for runners that hold the locks of their devices."""

    def __init__(
        self, *, environ: Mapping[str, str], log: Path, options: Sequence[str], locks: DeviceLocks, monotonic: Clock
    ) -> None:
        self._environ = environ
        self._log = log
        self._options = options
        self._locks = locks
        self._monotonic = monotonic
        self._link: NurseryLink | None = None
        self._lock = threading.Lock()
        #: When it may be started again, in monotonic seconds: a nursery that dies at once must not keep the machine busy.
        self.start_at = 0.0

    @property
    def pid(self) -> int | None:
        """Process id, or None while there is none."""
        link = self._link
        return link.pid if link else None

    def start(self) -> bool:
        """Start the process unless there is one or it is too early; return whether there is one now."""
        with self._lock:
            if self._link is None and self._monotonic() >= self.start_at:
                self.start_at = self._monotonic() + _PAUSE
                try:
                    self._link = NurseryLink(environ=self._environ, log=self._log, options=self._options)
                except OSError:
                    _logger.exception("the process that starts runners cannot be started")
            return self._link is not None

    def ask(self, directory: Path, devices: Sequence[Device]) -> None:
        """Ask for a runner. Raises `Unavailable` when there is no nursery or a device is taken; then no runner comes."""
        held = self._take(devices)
        try:
            with self._lock:
                if self._link is None:
                    raise Unavailable(
                        "The process that starts runners is gone and being started again.", remedy="Try again in a second."
                    )
                try:
                    self._link.ask(directory, held)
                except OSError as error:
                    raise Unavailable(
                        f"The process that starts runners takes no request now: {error}.", remedy="Try again in a second."
                    ) from error
        finally:
            for fd in held:
                os.close(fd)

    def _take(self, devices: Sequence[Device]) -> list[int]:
        for _ in range(_LOOKS - 1):
            with suppress(Unavailable):
                return self._locks.take(devices)
            time.sleep(_LOOK)  # another lab that only looks at a lock holds it for microseconds
        return self._locks.take(devices)

    def fileno(self) -> int:
        """Readable when there are answers or the process is gone; -1 while there is none."""
        return self._link.fileno() if self._link else -1

    def answers(self) -> list[Answer] | None:
        """Return the answers that have come, or None when the process is gone; then `start` makes another one."""
        link = self._link
        found = link.answers() if link else None
        if found is None and link is not None:
            with self._lock:
                self._link = None
            link.close()
        return found

    def close(self) -> None:
        """Let it end; its runners go on."""
        with self._lock:
            link, self._link = self._link, None
            self.start_at = float("inf")
        if link is not None:
            link.close()


def passed(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what runners, and so builds of environments, get of the server's variables."""
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.upper().endswith(_PASSED_SUFFIXES)
    }
