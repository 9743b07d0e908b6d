"""Lines of a journal that show whether they are whole: the CRC-32 of what stands on the line, in hexadecimal, before it.

A journal is the only witness of what it tells, and disks lose and change bytes. A damaged line must neither be believed nor hide
those after it. What is read goes on at the next line, and where the very end of a line was damaged, at the next checksum.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_CHECKED = re.compile(rb"[0-9a-f]{8} \{")


@dataclass(frozen=True, slots=True)
class Line:
    """What was found in a journal, in order."""

    #: Where it begins and ends in what was read.
    start: int
    end: int
    #: The line without its checksum, or None for bytes that are damaged.
    text: bytes | None


def checked(text: bytes) -> bytes:
    """Return `text`, a JSON object in one line, as it is written."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read_lines(data: bytes, *, over: bool = False) -> Iterator[Line]:
    """Yield the lines of `data`, and between them what is damaged.

    The part after the last newline is being written and is left out, unless the writer is `over`: then it is looked at, too, and
    left out only where nothing whole is in it.
    """
    start = 0
    while (newline := data.find(b"\n", start)) >= 0:
        yield from _line(data, start, newline, newline + 1)
        start = newline + 1
    if over and start < len(data):
        found = list(_line(data, start, len(data), len(data)))
        if any(line.text is not None for line in found):
            yield from found


def _line(data: bytes, start: int, stop: int, end: int) -> Iterator[Line]:
    """What stands between `start` and `stop`; `end` is where the next one begins."""
    line = data[start:stop]
    if (text := _whole(line)) is not None:
        yield Line(start, end, text)
    else:
        yield from _salvage(data, start, stop, end)


def _salvage(data: bytes, start: int, stop: int, end: int) -> Iterator[Line]:
    """A damaged line: the newline after it, or before it, may be all that was lost, or it may have other ones in it."""
    at = start
    while (found := _CHECKED.search(data, at, stop)) is not None:
        until = _end_of(data, found.start(), stop)
        if until is None:
            found = _next_whole(data, found.end(), stop)
            if found is None:
                break
            until = _end_of(data, found.start(), stop) or stop
        if found.start() > at:
            yield Line(at, found.start(), None)
        at = until if until < stop else end
        yield Line(found.start(), at, data[found.start() + 9 : until])
    if at < end:
        yield Line(at, end, None)


def _next_whole(data: bytes, at: int, stop: int) -> re.Match[bytes] | None:
    return next((found for found in _CHECKED.finditer(data, at, stop) if _end_of(data, found.start(), stop)), None)


def _end_of(data: bytes, start: int, stop: int) -> int | None:
    """Where the object ends of which the checksum stands at `start`: at the first brace up to which it is right."""
    wanted, crc, at = int(data[start : start + 8], 16), 0, start + 9
    while (brace := data.find(b"}", at, stop)) >= 0:
        crc = zlib.crc32(data[at : brace + 1], crc)
        at = brace + 1
        if crc == wanted:
            return at
    return None


def _whole(line: bytes) -> bytes | None:
    """The text of a line whose checksum is right."""
    text = line[9:]
    return text if len(line) > 9 and line[8:9] == b" " and line[:8] == b"%08x" % zlib.crc32(text) else None
