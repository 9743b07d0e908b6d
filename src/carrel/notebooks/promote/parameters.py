"""Parameters: what the cell tagged ``parameters`` assigns, as papermill reads it.

Source: papermill's documentation, "Parameterize".
"""

from __future__ import annotations

import ast
import io
import math
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carrel.notebooks.promote.edits import Edits
from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.notebook import Cell

TAG = "parameters"
#: Type in MLproject, and what reads a value of it in the script ("" for text).
_TYPES = {bool: ("bool", "_notebook.truth"), int: ("int", "int"), float: ("float", "float"), str: ("string", "")}
_OTHERS = ("string", "_notebook.literal")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter."""

    name: str
    #: "int", "float", "bool", "string" or "path".
    type: str
    value: Any
    #: The comment behind it.
    help: str = ""
    #: What reads a value in the script: a function's name, or "".
    reader: str = ""

    @property
    def option(self) -> str:
        """Its name on a command line."""
        plain = self.name.startswith("_") or self.name.endswith("_")
        return f"--{self.name if plain else self.name.replace('_', '-')}"

    @property
    def default(self) -> str | int | float | bool:
        """Its default in MLproject."""
        return self.value if isinstance(self.value, (bool, int, float, str)) else repr(self.value)


def read_parameters(
    tree: ast.Module, code: str, cell: Cell, line_of: Callable[[int], int], findings: Findings
) -> list[tuple[Parameter, ast.expr]]:
    """Return the parameters of a cell with the expressions of their values; `line_of` turns lines of `code` into the cell's."""
    comments = _comments(code)
    found: dict[str, tuple[Parameter, ast.expr]] = {}
    for statement in tree.body:
        line = line_of(statement.lineno)
        target = _target(statement)
        if target is None:
            if not isinstance(statement, (ast.Import, ast.ImportFrom)):
                findings.note(Severity.CHANGED, "is no `name = value` and stays as it is: not a parameter", cell.number, line)
            continue
        name, value = target
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            findings.note(Severity.CHANGED, f"{name} has no plain value and stays as it is: not a parameter", cell.number, line)
            continue
        if not _passes(literal):
            findings.note(
                Severity.CHANGED, f"{name} has a value that cannot be passed as text: not a parameter", cell.number, line
            )
            continue
        kind, reader = _TYPES.get(type(literal), _OTHERS)
        text = comments.get(statement.end_lineno or statement.lineno, "")
        found[name] = (Parameter(name=name, type=kind, value=literal, help=text, reader=reader), value)
    return list(found.values())


def edit_parameters(edits: Edits, parameters: list[tuple[Parameter, ast.expr]]) -> None:
    """Have the cell take the values from the command line."""
    for parameter, value in parameters:
        edits.replace(*edits.span(value), f"_parameters.{parameter.name}")


def _target(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            return name, value
    return None


def _passes(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return "\0" not in value
    return isinstance(value, (bool, int, list, tuple, dict, set, type(None)))


def _comments(code: str) -> dict[int, str]:
    """Return the comments by line."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(code).readline))
    except (tokenize.TokenError, SyntaxError):
        return {}
    return {token.start[0]: token.string.lstrip("#").strip() for token in tokens if token.type == tokenize.COMMENT}
