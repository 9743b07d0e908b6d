"""Looks for a text in a log, whatever case it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from carrel.lab.portal.words import plain

#: Lines that are shown, characters of each, and bytes of the log that are looked through.
_LINES, _WIDTH, _LONGEST = 200, 500, 64 * 1024**2
#: Bytes of one line that are looked at, its last.
_LONGEST_LINE = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The lines that were found."""

    text: str
    #: Numbers of lines, and the lines.
    lines: tuple[tuple[int, str], ...]
    #: True where there may be more.
    more: bool


def look_for(text: str, pieces: Iterable[bytes]) -> Found:
    """Return the first lines with `text` in them."""
    wanted, lines, number, read, rest = text.lower(), list[tuple[int, str]](), 0, 0, b""

    def look(line: bytes) -> None:
        if wanted in (said := plain(line.decode("utf-8", "replace"))).lower():
            at = max(0, said.lower().find(wanted) - _WIDTH // 2) if len(said) > _WIDTH else 0
            lines.append((number, said[at : at + _WIDTH]))

    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            number += 1
            look(line)
        read += len(piece)
        if len(lines) > _LINES or read >= _LONGEST:
            return Found(text=text, lines=tuple(lines[:_LINES]), more=True)
        rest = rest[-_LONGEST_LINE:]
    number += 1
    look(rest)
    return Found(text=text, lines=tuple(lines[:_LINES]), more=len(lines) > _LINES)
