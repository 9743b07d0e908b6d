"""Append to a runner's journal, and read what is new in it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from carrel.core.domain.launch import RECORD_TYPES, Damaged, Ended, Journaled, JournalRecord, Preparing
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.spool.foreign import LONGEST_MESSAGE, NOT_THERE, check_record, open_regular
from carrel.core.spool.lines import checked, read_lines

#: Bytes that are not read yet of a journal, of which the last ones are read at most: weeks of samples.
_LONGEST = 64 * 1024**2
_NAMES = {cls: name for name, cls in RECORD_TYPES.items()}


def entry_to_plain(at: float, record: JournalRecord) -> dict[str, Any]:
    """Return one entry as it stands in a journal."""
    return {"at": at, "type": _NAMES[type(record)], **to_plain(record)}


def entry_from_plain(plain: Mapping[str, Any]) -> Journaled:
    """Return the entry that `entry_to_plain` wrote; raise `ValueError`, `KeyError` or `TypeError` on anything else."""
    fields = dict(plain)
    at, cls = from_plain(float, fields.pop("at")), RECORD_TYPES[fields.pop("type")]
    record: JournalRecord = from_plain(cls, fields)
    check_record(at, record)
    return Journaled(at=at, record=record)


def append_entry(fd: int, at: float, record: JournalRecord) -> None:
    """Write one line with one write(2), so that a reader sees it whole or not at all (fd is opened O_APPEND).

    A message may quote a program: what readers would refuse in it is replaced. Raises `OSError` when the disk is full; what got
    onto it of the line is taken back, so that the journal stays sound.
    """
    match record:
        case Preparing():
            record = replace(record, message=_readable(record.message))
        case Ended():
            record = replace(record, reason=replace(record.reason, message=_readable(record.reason.message)))
        case _:
            pass
    line = checked(json.dumps(entry_to_plain(at, record), separators=(",", ":")).encode())
    written = os.write(fd, line)
    if written < len(line):
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _readable(message: str) -> str:
    return message.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")[:LONGEST_MESSAGE]


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


def read_entries(path: Path, offset: int = 0, *, over: bool = False) -> tuple[tuple[Journaled, ...], int]:
    """Return the entries after byte `offset`, and the offset after the last whole line.

    What is damaged is a `Damaged` among them, and hides nothing that stands after it; an `Ended` is always the last. A missing
    file has no entries. Of a journal that was made too long for its reader's memory only the end is read. An unfinished last line
    is left for later; when the runner is `over`, nothing more comes, and what is whole in it counts.
    """
    try:
        with open_regular(path) as file:
            skipped = max(0, os.fstat(file.fileno()).st_size - offset - _LONGEST)
            file.seek(offset + skipped)
            data = file.read(_LONGEST)
    except OSError as error:
        if error.errno in NOT_THERE:
            return (), offset
        raise
    entries = [Journaled(at=0.0, record=Damaged(offset=offset, size=skipped))] if skipped else []
    offset += skipped
    at, read = 0.0, 0
    for line in read_lines(data, over=over):
        read = line.end
        try:
            entry = entry_from_plain(json.loads(line.text)) if line.text is not None else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            entry = None
        if entry is None:
            entry = Journaled(at=at, record=Damaged(offset=offset + line.start, size=line.end - line.start))
        entries.append(entry)
        at = entry.at
        if isinstance(entry.record, Ended):
            break
    return tuple(entries), offset + read
