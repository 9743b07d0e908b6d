"""Changing Python text at places that its syntax tree names."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(slots=True)
class Edits:
    """Changes to one text; places are those of the text before any change."""

    text: str
    _starts: list[int] = field(default_factory=list)
    _changes: list[tuple[int, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        position = 0
        for line in self.text.split("\n"):
            self._starts.append(position)
            position += len(line) + 1

    def offset(self, line: int, column: int) -> int:
        """Return the place of a line (from 1) and a column as `ast` counts it: in bytes of UTF-8."""
        start = self._starts[line - 1]
        end = self._starts[line] - 1 if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode())

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        """Return where a node begins and ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def source(self, node: ast.stmt | ast.expr) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def replace(self, start: int, end: int, text: str) -> None:
        """Put `text` in the place of what is there."""
        self._changes.append((start, end, text))

    def done(self) -> str:
        """Return the text with all changes."""
        text = self.text
        # Of two at one place the later one was written to stand inside: it is applied first.
        for _, (start, end, new) in sorted(
            enumerate(self._changes), key=lambda item: (item[1][0], item[1][1], item[0]), reverse=True
        ):
            text = text[:start] + new + text[end:]
        return text


def line_numbers_in_strings(tree: ast.AST) -> set[int]:
    """Return the lines that begin inside a string of several lines: their blanks belong to it."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.JoinedStr, ast.Constant)) and node.end_lineno is not None:
            value = node.value if isinstance(node, ast.Constant) else ""
            if isinstance(value, (str, bytes)):
                inside.update(range(node.lineno + 1, node.end_lineno + 1))
    return inside
