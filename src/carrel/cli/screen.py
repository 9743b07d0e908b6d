"""What people see: colours where they are wanted, tables that line up, one line that changes while something is awaited."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from carrel.cli.endings import OK

if TYPE_CHECKING:
    from pydantic import BaseModel

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}
#: What a spreadsheet reads as a formula (OWASP, "CSV Injection"): by its beginning, where it is no number.
_FORMULA = re.compile(r"(?!-\d+(\.\d+)?\Z)[=+\-@\t\r]")
#: Colour of each state of a job.
STATE_STYLES = {
    "PENDING": "yellow",
    "CONFIGURING": "cyan",
    "RUNNING": "blue",
    "SUSPENDED": "magenta",
    "COMPLETED": "green",
    "CANCELLED": "dim",
    "FAILED": "red",
    "TIMEOUT": "red",
    "OUT_OF_MEMORY": "red",
    "NODE_FAIL": "red",
    "PREEMPTED": "magenta",
}


def has_colours(stream: TextIO) -> bool:
    """True when `stream` is a terminal whose user has not asked for none (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style ("bold", "red" …), or as it is where there are no colours."""
    wanted = _STYLES.get(style)
    return f"\x1b[{wanted}m{text}\x1b[0m" if wanted and text and has_colours(stream or sys.stdout) else text


def clean(text: str) -> str:
    """`text` on one line without control characters: names come from users, and a terminal obeys control characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def width_of(text: str) -> int:
    """Columns that `text` takes on a terminal (UAX #11)."""
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` columns."""
    if width_of(text) <= width:
        return text
    taken = ""
    for char in text:
        if width_of(taken + char) > width - 1:
            break
        taken += char
    return taken.rstrip() + "…"


def columns() -> int:
    """Width of the terminal; what goes elsewhere has no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000


def print_csv(heads: Sequence[str], rows: Iterable[Sequence[object]], file: TextIO | None = None) -> None:
    """Print CSV (RFC 4180), or write it into a file.

    A text that a spreadsheet would read as a formula gets an apostrophe before it.
    """
    import csv

    writer = csv.writer(file or sys.stdout, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow(f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell for cell in row)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    styles: Mapping[int, Mapping[str, str] | str] | None = None,
    right: Iterable[int] = (),
) -> None:
    """Print rows under heads. Only the last column is cut when the terminal is too narrow; empty columns are left out.

    `styles`: style of a column, or of each text in it. `right`: columns of numbers.
    """
    texts = [[clean(cell) for cell in row] for row in rows]
    shown = [index for index in range(len(heads)) if not texts or any(row[index] for row in texts)]
    widths = {index: max(width_of(heads[index]), *(width_of(row[index]) for row in texts), 0) for index in shown}
    spent = sum(widths[index] + 2 for index in shown[:-1])
    left = max(columns() - spent, 16)

    def line(cells: Sequence[str], *, head: bool) -> str:
        parts = []
        for index in shown:
            text = cells[index] if index != shown[-1] else cut(cells[index], left)
            space = " " * (widths[index] - width_of(text)) if index != shown[-1] or index in right else ""
            style = "bold" if head else _style_of((styles or {}).get(index), text)
            parts.append(space + paint(text, style) if index in right else paint(text, style) + space)
        return "  ".join(parts).rstrip()

    print(line(list(heads), head=True))
    for row in texts:
        print(line(row, head=False))


def _style_of(style: Mapping[str, str] | str | None, text: str) -> str:
    return style if isinstance(style, str) else (style or {}).get(text, "")


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print names and values; those without a value are left out."""
    shown = [(name, value) for name, value in fields if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *more = value.splitlines()
        print(f"{paint(name.ljust(width), 'dim')}  {first}")
        for line in more:
            print(f"{' ' * width}  {line}")


def print_json(document: BaseModel | Mapping[str, Any]) -> int:
    """Print one JSON document on one line, which ends a command well."""
    text = json.dumps(document, default=str) if isinstance(document, Mapping) else document.model_dump_json()
    print(text, flush=True)
    return OK


def _move(text: str) -> None:
    """Write what moves the cursor: beside `carrel.cli.terminal.Terminal`, which would show it."""
    getattr(sys.stderr, "bare", sys.stderr).write(text)


class StatusLine:
    """News on stderr while something is awaited: one line that changes on a terminal, else a line for each change."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = ""

    def show(self, text: str) -> None:
        """Say how things stand."""
        text = clean(text)
        if text == self._shown:
            return
        self._shown = text
        if self._live:
            fitting = cut(text, shutil.get_terminal_size().columns - 1)
            _move(f"\r\x1b[2K{paint(fitting, 'dim', sys.stderr)}")
        else:
            sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._live and self._shown:
            _move("\r\x1b[2K")
            sys.stderr.flush()
        self._shown = ""

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        print(text, file=sys.stderr, flush=True)
