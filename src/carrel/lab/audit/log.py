"""The files of the audit log: numbered by their first line, written by one process, only ever added to."""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.domain.ports import Clock

#: Bytes that are kept ahead of what was written, and how few of them are a reason to ask for more.
AHEAD, LOW = 1024 * 1024, 256 * 1024
#: So few of them, and only what frees room is done.
LAST = 64 * 1024
_KEEP_SIZE = 1


def _keep(fd: int, start: int, size: int) -> None:
    """Have blocks for `size` bytes from `start` on, without making the file longer. Raises `OSError` where there is no room.

    A file system that cannot do that is asked how much is free instead.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if call is not None and call(fd, _KEEP_SIZE, ctypes.c_int64(start), ctypes.c_int64(size)) == 0:
        return
    number = ctypes.get_errno() if call is not None else errno.ENOSYS
    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(number, os.strerror(number))
    free = os.fstatvfs(fd)
    if free.f_bavail * free.f_frsize < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


#: What `audit_reads` may be.
READS = ("none", "others", "all")
#: Bytes of a file at most, but for its last line.
_FILE = 16 * 1024 * 1024
#: Lines that wait in memory while the disk takes none.
_WAITING = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which lines somebody wants to see."""

    who: str | None = None
    action: str | None = None
    #: "allowed", "refused" or "failed".
    result: str | None = None
    #: What it was done with: a job ("/jobs/12"), a node; also what lies below it.
    resource: str | None = None
    #: Unix seconds.
    since: float | None = None
    until: float | None = None
    #: Only lines with a greater number.
    after: int = 0

    def has(self, entry: Mapping[str, Any]) -> bool:
        """Return whether a line is one of them."""
        resource = str(entry.get("resource", ""))
        return (
            entry["seq"] > self.after
            and (self.who is None or entry.get("who") == self.who)
            and (self.action is None or entry.get("action") == self.action)
            and (self.result is None or entry.get("result") == self.result)
            and (self.resource is None or f"{resource}/".startswith(f"{self.resource.rstrip('/')}/"))
            and (self.since is None or entry["at"] >= self.since)
            and (self.until is None or entry["at"] < self.until)
        )


class AuditLog:
    """Adds lines, and reads them. Thread-safe; one process at a time has it (the lab's lock)."""

    def __init__(self, directory: Path, *, clock: Clock, file_size: int = _FILE) -> None:
        """Go on where an earlier process stopped. A line that was not whole is cut off, and that is written down."""
        self._directory = directory
        self._clock = clock
        self._file_size = file_size
        self._guard = threading.Lock()
        self._waiting: deque[tuple[int, bytes]] = deque()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._seq, note = self._recall()
        self._fd, self._end, self._kept = -1, 0, 0
        self._open()
        self.add({"action": "start the lab", "result": "allowed", **({"note": note} if note else {})})

    @property
    def last(self) -> int:
        """The number of the last line."""
        with self._guard:
            return self._seq

    def make_room(self, *, frees: bool = False) -> None:
        """Make sure that a line will fit, before something is done. Raises `StorageFull` or `Unavailable`: then do not do it.

        What `frees` room is done all the same: its line waits in memory if it must.
        """
        with self._guard:
            self._catch_up()
            if self._waiting and not frees:
                raise Unavailable("The audit log cannot be written.", remedy="An administrator looks at the lab's disk.")
            if self._kept - self._end >= LOW:
                return
            try:
                _keep(self._fd, self._end, AHEAD)
                self._kept = self._end + AHEAD
            except OSError as error:
                if self._kept - self._end < LAST and not frees:
                    raise StorageFull(
                        f"There is no room to write down who does what ({error.strerror}).",
                        remedy="Free some on the lab's disk: `carrel gc`, or cancel what fills it.",
                    ) from error

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add a line. It never fails: what the disk does not take waits in memory, and nothing more is allowed meanwhile."""
        with self._guard:
            self._seq += 1
            line = json.dumps({"seq": self._seq, "at": round(self._clock(), 3), **entry}, separators=(",", ":"))
            self._waiting.append((self._seq, line.encode() + b"\n"))
            self._catch_up()
            if len(self._waiting) > _WAITING:
                _log.error("the audit log loses a line: %s", self._waiting.popleft()[1].decode().strip())

    def read(self, wanted: AuditFilter, *, limit: int, newest: bool = False) -> list[dict[str, Any]]:
        """Return the first lines that are wanted, or the last ones; oldest first. What is torn is left out."""
        if newest:
            return self._newest(wanted, limit)
        found: list[dict[str, Any]] = []
        files = self._files()
        begun = [int(path.stem) for path in files]
        for number, path in enumerate(files):
            if number + 1 < len(files) and begun[number + 1] <= wanted.after + 1:
                continue
            with suppress(FileNotFoundError), path.open("rb") as file:
                for line in file:
                    if (entry := _wanted(line, wanted)) is not None:
                        found.append(entry)
                        if len(found) >= limit:
                            return found
        return found

    def _newest(self, wanted: AuditFilter, limit: int) -> list[dict[str, Any]]:
        """The last lines, oldest first: most are in the newest file, however many there are."""
        found: list[dict[str, Any]] = []
        for path in reversed(self._files()):
            with suppress(FileNotFoundError):
                for line in reversed(path.read_bytes().splitlines()):
                    if (entry := _wanted(line, wanted)) is not None:
                        found.append(entry)
                        if len(found) >= limit:
                            return found[::-1]
        return found[::-1]

    def old(self, before: float) -> Sequence[Path]:
        """The files whose last line is older than that moment, oldest first; never the one that is written."""
        found = []
        for path in self._files()[:-1]:
            with suppress(ValueError, KeyError, TypeError):
                if json.loads(_last_line(path))["at"] < before:
                    found.append(path)
                    continue
            break
        return found

    def remove(self, path: Path) -> None:
        """Write down that the oldest file goes, and remove it."""
        self.add({"action": "remove old audit", "result": "allowed", "rule": "keep_audit", "file": path.name})
        path.unlink(missing_ok=True)

    def close(self) -> None:
        """Write down that the lab stops."""
        if self._fd < 0:
            return
        self.add({"action": "stop the lab", "result": "allowed"})
        with self._guard:
            os.fdatasync(self._fd)
            os.ftruncate(self._fd, self._end)  # gives back the room that was kept
            os.close(self._fd)
            self._fd = -1

    def _files(self) -> list[Path]:
        return sorted(self._directory.glob("*.jsonl"), key=lambda path: int(path.stem) if path.stem.isdecimal() else 0)

    def _recall(self) -> tuple[int, str]:
        """Return the number of the last line, and what was wrong; "" for nothing."""
        files = self._files()
        if not files:
            return 0, ""
        whole, _, rest = files[-1].read_bytes().rpartition(b"\n")
        if rest:
            os.truncate(files[-1], files[-1].stat().st_size - len(rest))
        note = f"{len(rest)} bytes of a line that was not whole were cut off." if rest else ""
        for line in reversed(whole.splitlines()):
            with suppress(ValueError, KeyError, TypeError):
                return int(json.loads(line)["seq"]), note
        return int(files[-1].stem) - 1, note

    def _open(self) -> None:
        files = self._files()
        path = files[-1] if files else self._directory / f"{self._seq + 1:012}.jsonl"
        if files and path.stat().st_size >= self._file_size:
            path = self._directory / f"{self._seq + 1:012}.jsonl"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._end = os.fstat(self._fd).st_size
        self._kept = self._end

    def _catch_up(self) -> None:
        """Write what waits. A line that was written in part is taken back."""
        while self._waiting:
            seq, line = self._waiting[0]
            try:
                if self._end >= self._file_size:
                    self._turn(seq)
                if (written := os.write(self._fd, line)) < len(line):
                    os.ftruncate(self._fd, self._end)
                    raise OSError(28, f"{written} of {len(line)} bytes fitted")
            except OSError as error:
                _log.error("the audit log cannot be written: %s", error)
                return
            self._end += len(line)
            self._waiting.popleft()

    def _turn(self, seq: int) -> None:
        """Begin another file."""
        path = self._directory / f"{seq:012}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.fdatasync(self._fd)
        os.ftruncate(self._fd, self._end)
        os.close(self._fd)
        self._fd, self._end, self._kept = fd, os.fstat(fd).st_size, 0


def _wanted(line: bytes, wanted: AuditFilter) -> dict[str, Any] | None:
    """The line if it is whole and wanted."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        entry: dict[str, Any] = json.loads(line)
        return entry if wanted.has(entry) else None
    return None


def _last_line(path: Path) -> bytes:
    """Return the last whole line of a file."""
    return path.read_bytes().rpartition(b"\n")[0].rpartition(b"\n")[2]
