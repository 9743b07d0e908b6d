"""What a runner says: lines in the journal, and a ring at the engine's door."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.core.domain.launch import Ended, JournalRecord, Sampled
from carrel.core.spool import AttemptDirectory, Journal

if TYPE_CHECKING:
    import socket

    from carrel.core.domain.ports import Clock

#: Seconds between rings for a growing log: at the beginning, and after ten minutes. Every ring becomes an event that is kept, so
#: a task that talks for days is listened to less closely than one that has just begun.
RING_INTERVAL = 0.05
_SLOW_RING_INTERVAL = 1.0
_SLOW_AFTER = 600.0
#: Seconds after which a ring that found the engine's queue full is tried again.
_RING_AGAIN = 0.02
#: Longest path that a socket address holds (unix(7): 108 bytes with the final zero).
_ADDRESS_LIMIT = 107


class Doorbell:
    """Wakes the engine. Never blocks, never fails: the journal is the truth, and the engine looks by itself now and then."""

    def __init__(self, path: str, message: bytes, monotonic: Clock, *, network: str = "") -> None:
        """`path` is a unix socket; where nobody listens there, `network` ("host:port/word") may be another machine's."""
        self._network = network
        self._message = message
        self._monotonic = monotonic
        self._path = path
        self._socket: socket.socket | None = None
        self._far: tuple[socket.socket, Any] | None = None
        self._directory = -1
        #: When to ring next (monotonic), or None when there is no news.
        self.due: float | None = None
        self._last = float("-inf")
        self._born = monotonic()

    def ring(self) -> None:
        """Wake the engine now."""
        if self._path and self._socket is None:
            self._open()
        if self._socket is None:
            return
        self._last = self._monotonic()
        self.due = None
        try:
            self._socket.sendto(self._message, self._path)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):  # the engine is behind; it must not miss this one
                self.due = self._last + _RING_AGAIN
            elif self._network:
                self._ring_over_the_network()

    def _ring_over_the_network(self) -> None:
        import socket

        host, _, rest = self._network.rpartition(":")
        port, _, word = rest.partition("/")
        try:
            if self._far is None:
                found = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
                self._far = (socket.socket(found[0], socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC), found[4])
            self._far[0].sendto(f"{word} ".encode() + self._message, self._far[1])
        except (OSError, ValueError):
            pass  # the engine looks by itself now and then

    def close(self) -> None:
        """Let go of what it rang with; it does not ring again. A runner need not: it ends with its process."""
        self._path = self._network = ""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._far is not None:
            self._far[0].close()
            self._far = None
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def _open(self) -> None:
        import socket  # most of what rings first does so when the command runs already

        path, self._path = self._path, ""
        try:
            if len(os.fsencode(path)) > _ADDRESS_LIMIT:
                self._directory = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                path = f"/proc/self/fd/{self._directory}/{Path(path).name}"
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError:
            return
        self._path = path

    def ring_soon(self) -> None:
        """Wake the engine now, or an interval after the last ring: for news that come in crowds."""
        now = self._monotonic()
        interval = max(RING_INTERVAL, _SLOW_RING_INTERVAL * min(1.0, (now - self._born) / _SLOW_AFTER))
        if now - self._last >= interval:
            self.ring()
        elif self.due is None:
            self.due = self._last + interval

    def tick(self, now: float) -> None:
        """Ring when a ring is due."""
        if self.due is not None and now >= self.due:
            self.ring()


class Reporter:
    """The runner's end of the journal, with the doorbell."""

    def __init__(self, journal: Path, doorbell: Doorbell, clock: Clock) -> None:
        self._journal = Journal(journal)
        self._clock = clock
        self._unwritten: list[tuple[float, JournalRecord]] = []
        self.doorbell = doorbell

    def record(self, record: JournalRecord, *, ring: bool = True) -> None:
        """Append `record`. On a full disk it waits in memory (samples are left out) and goes before the next one."""
        if isinstance(record, Sampled) and not self._flush():
            return
        self._unwritten.append((self._clock(), record))
        if self._flush() and ring:
            self.doorbell.ring()

    def end(self, record: Ended, *, make_room: Callable[[], None]) -> None:
        """Append the last record in any case: on a full disk call `make_room`, wait, and try again until it is written."""
        self._unwritten.append((self._clock(), record))
        pause = 0.1
        while not self._flush():
            make_room()
            if self._flush():
                break
            time.sleep(pause)
            pause = min(5.0, pause * 2)
        self.doorbell.ring()
        # One more try for a full queue; after this the engine sees that the process is gone.
        if self.doorbell.due is not None:
            self.doorbell.ring()

    def _flush(self) -> bool:
        while self._unwritten:
            try:
                self._journal.append(*self._unwritten[0])
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                return False
            del self._unwritten[0]
        return True


def keep_traceback(directory: AttemptDirectory) -> None:
    """Write the traceback of the exception at hand to the runner's log of the attempt."""
    import traceback

    with suppress(OSError), open(directory.runner_log, "a") as file:
        traceback.print_exc(file=file)
