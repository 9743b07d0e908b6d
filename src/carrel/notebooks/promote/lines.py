"""Taking a cell apart into Python and IPython's own syntax, without IPython.

Source: IPython 9's documentation, "Python vs IPython", and its behaviour. An escape (``%``, ``!``, ``?``) counts where a
statement begins, and behind ``name =``; never inside a string, inside brackets, or on a line that goes on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_NAME = re.compile(r"[^\W\d][\w.]*")
_HELP = re.compile(r"\s*(?:%{0,2}(?!\d)[\w*]+(?:\.[\w*]+|\[-?\d+\])*\s*\?\??|\?\??\s*%{0,2}[\w.*]+)\s*;?\s*(?:#.*)?")
_PAIRS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
#: What makes ``=`` another operator when it stands before it.
_BEFORE_EQUALS = "=!<>+-*/%&|^@:~"


class Kind(StrEnum):
    """What a piece of a cell is."""

    PYTHON = "python"
    MAGIC = "magic"
    CELL_MAGIC = "cell magic"
    SHELL = "shell"
    OUTPUT = "output"
    HELP = "help"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some lines of a cell. The texts of all pieces, one behind the other, are the cell."""

    kind: Kind
    #: As it is in the cell, with its newlines.
    text: str
    #: Number of its first line in the cell, from 1.
    line: int
    #: Blanks before it.
    indent: str = ""
    #: ``x =`` before it, or "".
    target: str = ""
    #: Of a magic.
    name: str = ""
    #: What follows the name or the escape, as one line.
    rest: str = ""
    #: The lines below a cell magic.
    body: str = ""


@dataclass(slots=True)
class _State:
    """Where a scan stands: inside brackets, inside a string, or behind a backslash."""

    depth: int = 0
    quote: str = ""
    continued: bool = False

    @property
    def at_statement(self) -> bool:
        return not (self.depth or self.quote or self.continued)


def split_cell(source: str) -> list[Piece]:
    """Return the pieces of a cell."""
    lines = [line + "\n" for line in source.split("\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    magic = _cell_magic(lines)
    if magic is not None:
        return magic
    pieces: list[Piece] = []
    state = _State()
    position = 0
    while position < len(lines):
        piece = _escape(lines, position) if state.at_statement else None
        if piece is None:
            if pieces and pieces[-1].kind is Kind.PYTHON:
                pieces[-1] = Piece(kind=Kind.PYTHON, text=pieces[-1].text + lines[position], line=pieces[-1].line)
            else:
                pieces.append(Piece(kind=Kind.PYTHON, text=lines[position], line=position + 1))
            _scan(lines[position], state)
            position += 1
            continue
        pieces.append(piece)
        position += max(1, piece.text.count("\n") + (not piece.text.endswith("\n")))
    return pieces


def _cell_magic(lines: list[str]) -> list[Piece] | None:
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None or not lines[first].startswith("%%") or _HELP.fullmatch(lines[first]):
        return None
    name, rest = _named(lines[first][2:].strip())
    piece = Piece(
        kind=Kind.CELL_MAGIC,
        text="".join(lines[first:]),
        line=first + 1,
        name=name,
        rest=rest,
        body="".join(lines[first + 1 :]),
    )
    before = [Piece(kind=Kind.PYTHON, text="".join(lines[:first]), line=1)] if first else []
    return [*before, piece]


def _escape(lines: list[str], position: int) -> Piece | None:
    """Return the piece of IPython's syntax that begins with this line, or None where it is Python."""
    line = lines[position]
    stripped = line.lstrip(" \t")
    indent = line[: len(line) - len(stripped)]
    if _HELP.fullmatch(line.rstrip("\n")):
        return Piece(kind=Kind.HELP, text=line, line=position + 1, indent=indent, rest=stripped.strip())
    target = ""
    if not stripped.startswith(("%", "!", "?")):
        equals = _assignment(stripped)
        if equals is None:
            return None
        target, stripped = stripped[:equals].rstrip(), stripped[equals + 1 :].lstrip(" \t")
    text, joined = _joined(lines, position, stripped)
    kind, name, rest = Kind.HELP, "", joined
    if joined.startswith("!!"):
        kind, rest = Kind.OUTPUT, joined[2:].strip()
    elif joined.startswith("!"):
        kind, rest = Kind.OUTPUT if target else Kind.SHELL, joined[1:].strip()
    elif joined.startswith("%"):
        kind = Kind.MAGIC
        name, rest = _named(joined[1:].strip())
    return Piece(kind=kind, text=text, line=position + 1, indent=indent, target=target, name=name, rest=rest)


def _named(text: str) -> tuple[str, str]:
    """Return name and arguments; a name that is none is kept whole, for the message."""
    match = _NAME.match(text)
    if match is None:
        name, _, rest = text.partition(" ")
        return name, rest.strip()
    return match[0], text[match.end() :].strip()


def _joined(lines: list[str], position: int, first: str) -> tuple[str, str]:
    """Return the lines of an escape as they are, and as one: a backslash at a line's end goes on with the next."""
    text, parts = lines[position], []
    line = first.rstrip("\n")
    while line.endswith("\\") and position + 1 < len(lines):
        parts.append(line[:-1].rstrip())
        position += 1
        text += lines[position]
        line = lines[position].rstrip("\n").strip()
    return text, " ".join([*parts, line]).strip()


def _assignment(line: str) -> int | None:
    """Return where the ``=`` is in ``x = !command`` or ``x = %magic``, or None."""
    state = _State()
    index = 0
    while index < len(line):
        character = line[index]
        plain = not (state.depth or state.quote)
        if plain and character == "#":
            return None
        if (
            plain
            and character == "="
            and (index == 0 or line[index - 1] not in _BEFORE_EQUALS)
            and line[index + 1 : index + 2] != "="
        ):
            after = line[index + 1 :].lstrip(" \t")
            if after.startswith("!") or (after.startswith("%") and _NAME.match(after[1:])):
                return index if line[:index].strip() else None
            return None
        index += _step(line, index, state)
    return None


def _scan(line: str, state: _State) -> None:
    """Go on over one line of Python."""
    state.continued = False
    index = 0
    while index < len(line):
        if not state.quote and line[index] == "#":
            break
        if line[index] == "\\" and line[index + 1 :] in ("\n", "") and not state.quote:
            state.continued = True
            return
        index += _step(line, index, state)
    if len(state.quote) == 1 and not line.rstrip("\n").endswith("\\"):
        state.quote = ""  # not closed on its line: Python will say so


def _step(line: str, index: int, state: _State) -> int:
    """Take one token (or character) at `index`; return how long it was."""
    if state.quote:
        if line[index] == "\\":
            return 2
        if line.startswith(state.quote, index):
            length = len(state.quote)
            state.quote = ""
            return length
        return 1
    if line[index] in "\"'":
        triple = line[index] * 3
        state.quote = triple if line.startswith(triple, index) else line[index]
        return len(state.quote)
    state.depth = max(0, state.depth + _PAIRS.get(line[index], 0))
    return 1
