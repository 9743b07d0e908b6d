"""What a broker writes down before each step, so that kill -9 at any moment loses nothing.

One JSON object on each line, with its checksum before it (`carrel.core.spool.lines`), written with one write(2): it survives
the end of the process, and a machine that goes down takes the processes along whose leases these are, so nothing is synced.
A line holds the rows that a step changed, whole::

    {"at": 1700000000.0, "set": [["lease", {…}], ["tenant", {…}]], "drop": [["request", "…"]]}
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from carrel.core.spool.lines import checked
from carrel.core.spool.lines import read_lines as checked_lines

_log = logging.getLogger(__name__)

Row = dict[str, Any]


class BrokerJournal:
    """The journal of one broker; there is one broker at a time (its lock sees to that)."""

    def __init__(self, path: Path, *, keep: int = 1) -> None:
        self._path = path
        self._keep = keep
        self._fd = -1
        #: Bytes in the file.
        self.size = 0

    def start(self, rows: Sequence[tuple[str, Row]], at: float) -> None:
        """Begin a new journal that holds just `rows`, in place of the old one; from now on `append` works."""
        draft = self._path.with_name(f"{self._path.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self.size = descriptor, 0
        self.append(at, rows, ())
        if self._keep:
            self._archive()
        draft.replace(self._path)

    def append(self, at: float, rows: Sequence[tuple[str, Row]], drops: Sequence[tuple[str, str]]) -> None:
        """Add one line. Raises `OSError` when the disk is full; then nothing was added."""
        fields: dict[str, Any] = {"at": at, "set": rows}
        if drops:
            fields["drop"] = drops
        line = checked(json.dumps(fields, separators=(",", ":")).encode())
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += written

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _archive(self) -> None:
        """Keep the old journal under a number of its own, and only so many of them."""
        old = sorted(self._path.parent.glob(f"{self._path.name}.[0-9]*"))
        number = int(old[-1].suffix[1:]) + 1 if old else 1
        if self._path.exists():
            # A copy of the name, not of the bytes; the new journal takes the old name in one step.
            os.link(self._path, self._path.with_name(f"{self._path.name}.{number:06d}"))
            for path in old[: max(0, len(old) + 1 - self._keep)]:
                path.unlink(missing_ok=True)


def read_lines(path: Path) -> Iterator[tuple[float, list[tuple[str, Row]], list[tuple[str, str]]]]:
    """Yield the lines of a journal as (time, rows that were set, rows that were dropped); a missing file has none.

    An unfinished last line (the writer was killed in the middle, or the disk was full) is no line. What is damaged is passed
    over, and said in the log: the lines after it tell what is true now of all that they name.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    for line in checked_lines(data, over=True):
        try:
            if line.text is None:
                raise ValueError("the checksum is wrong")
            fields = json.loads(line.text)
            found = (
                float(fields["at"]),
                [(kind, row) for kind, row in fields["set"]],
                [(kind, name) for kind, name in fields.get("drop", ())],
            )
        except (ValueError, KeyError, TypeError) as error:
            _log.error("%s is damaged from byte %d to %d: %s", path, line.start, line.end, error)
        else:
            yield found
