"""Append to a runner's journal, and read what is new in it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carrel.domain.launch import RECORD_TYPES, Journaled, JournalRecord
from carrel.domain.serial import from_plain, to_plain

_NAMES = {cls: name for name, cls in RECORD_TYPES.items()}


def entry_to_plain(at: float, record: JournalRecord) -> dict[str, Any]:
    """Return one entry as it stands in a journal."""
    return {"at": at, "type": _NAMES[type(record)], **to_plain(record)}


def entry_from_plain(plain: Mapping[str, Any]) -> Journaled:
    """Return the entry that `entry_to_plain` wrote; raise `ValueError`, `KeyError` or `TypeError` on anything else."""
    fields = dict(plain)
    at, cls = fields.pop("at"), RECORD_TYPES[fields.pop("type")]
    return Journaled(at=at, record=from_plain(cls, fields))


def append_entry(fd: int, at: float, record: JournalRecord) -> None:
    """Write one line with one write(2), so that a reader sees it whole or not at all (fd is opened O_APPEND).

    Raises `OSError` when the disk is full; what got onto it of the line is taken back, so that the journal stays sound.
    """
    line = json.dumps(entry_to_plain(at, record), separators=(",", ":")).encode() + b"\n"
    written = os.write(fd, line)
    if written < len(line):
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Journal:
    """The runner's end of a journal."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def append(self, at: float, record: JournalRecord) -> None:
        """Add `record`; it is visible to readers when this returns. Raises `OSError` and adds nothing on a full disk."""
        append_entry(self._fd, at, record)

    def close(self) -> None:
        """Close the file; nothing can be added after it."""
        os.close(self._fd)


def read_entries(path: Path, offset: int = 0) -> tuple[tuple[Journaled, ...], int]:
    """Return the entries after byte `offset`, and the offset after the last whole line.

    A missing file has no entries; an unfinished last line (the writer was killed in the middle) is left for later.
    """
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return (), offset
    whole = data[: data.rfind(b"\n") + 1]
    entries = tuple(entry_from_plain(json.loads(line)) for line in whole.splitlines())
    return entries, offset + len(whole)
