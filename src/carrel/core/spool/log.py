"""The log of an attempt: written by its runner, read by anybody who may.

The writer keeps three promises. The bytes are the job's own, in the order of writing, except for secrets, which are
starred out. The file never grows beyond its limit by more than a few notes; what is dropped is counted and said. A full
disk does not hurt the job: output waits in memory until there is room, and what did not fit there is counted and said.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.units import format_size

#: Characters of the shortest secret that is starred out.
_LEAST = 8
_STARS = b"********"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Bytes that wait in memory while the disk is full.
_WAITING = 1024**2
#: What a line of the lab's own begins with.
NOTE = b"[carrel] "


class LogWriter:
    """The runner's end of a log."""

    def __init__(self, path: Path, *, limit: int, secrets: Sequence[str] = ()) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._limit = limit
        self._secrets: tuple[bytes, ...] = ()
        self.hide(secrets)
        self._held = b""
        self._waiting = b""
        self._ends_line = True
        self._kept = 0
        #: Bytes that were not kept because the log reached its limit.
        self.dropped = 0
        #: Bytes that were lost because the disk was full.
        self.lost = 0
        #: Bytes in the file.
        self.size = os.fstat(self._fd).st_size

    def hide(self, secrets: Iterable[str]) -> None:
        """Star out these, too: each whole, and the lines of one that has several. Short ones would star out words."""
        parts = {part for secret in secrets for part in (secret, *secret.splitlines()) if len(part) >= _LEAST}
        known = {*self._secrets, *(part.encode(errors="surrogatepass") for part in parts)}
        # The longest first: a part of one must not keep the whole from being found.
        self._secrets = tuple(sorted(known, key=lambda secret: (-len(secret), secret)))

    @property
    def unsettled(self) -> bool:
        """True while something waits in memory; `settle` should be called again soon."""
        return bool(self._held or self._waiting)

    @property
    def stuck(self) -> int:
        """Bytes of output that are not in the file because the disk is full."""
        return len(self._waiting) + self.lost

    def write(self, data: bytes) -> None:
        """Add output of the job."""
        if self._secrets:
            data = self._redact(self._held + data)
        room = max(0, self._limit - self._kept)
        if len(data) > room:
            first = self.dropped == 0
            self.dropped += len(data) - room
            data = data[:room]
            self._put(data)
            if first:
                self.note(f"The log reached its limit of {format_size(self._limit)}; what follows is counted and not kept.")
        else:
            self._put(data)
        self._kept += len(data)

    def note(self, text: str) -> None:
        """Add a line of Carrel's own, on a line by itself."""
        start = b"" if self._ends_line else b"\n"
        self._put(start + NOTE + text.encode(errors="replace") + b"\n")

    def settle(self) -> None:
        """Write what was held back: the start of something that may have become a secret, output that met a full disk."""
        held, self._held = self._held, b""
        self._put(held)

    def close(self) -> None:
        """Write what is left, say how much was dropped, and close the file."""
        self.settle()
        if self.dropped:
            self.note(f"{self.dropped} bytes of output were not kept (limit {format_size(self._limit)}).")
        os.close(self._fd)

    def _redact(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, _STARS)
        keep = max(_overlap(data, secret) for secret in self._secrets)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def _put(self, data: bytes) -> None:
        if data:
            self._ends_line = data.endswith(b"\n")
        if self._waiting:
            waiting, self._waiting = self._waiting, b""
            self._waiting = self._append(waiting)
            if self._waiting:
                room = _WAITING - len(self._waiting)
                self._waiting += data[:room]
                self.lost += max(0, len(data) - room)
                return
            if self.lost:
                lost, self.lost = self.lost, 0
                self.note(f"{lost} bytes of output were lost here: the disk was full.")
        rest = self._append(data)
        self._waiting += rest[:_WAITING]
        self.lost += max(0, len(rest) - _WAITING)

    def _append(self, data: bytes) -> bytes:
        """Return what a full disk did not take."""
        view = memoryview(data)
        try:
            while view:
                written = os.write(self._fd, view)
                self.size += written
                view = view[written:]
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
        return bytes(view)


def _overlap(data: bytes, secret: bytes) -> int:
    """Return how many bytes at the end of `data` are the start of `secret`."""
    for length in range(min(len(data), len(secret) - 1), 0, -1):
        if data.endswith(secret[:length]):
            return length
    return 0


@dataclass(frozen=True, slots=True)
class LogRange:
    """Part of a log."""

    data: bytes
    #: Bytes in the whole log, now.
    size: int


def read_log(path: Path, offset: int, limit: int) -> LogRange:
    """Return at most `limit` bytes from byte `offset` (from the end when negative); a log that does not exist is empty."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return LogRange(b"", 0)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size + offset) if offset < 0 else offset
        return LogRange(os.pread(fd, max(0, min(limit, size - start)), start), size)
    finally:
        os.close(fd)
