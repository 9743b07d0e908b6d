"""The notebook itself as the task: the chosen cells, without outputs, and without what would change the environment."""

from __future__ import annotations

import ast
import copy
import json
from typing import Any

from carrel.notebooks.promote.cells import read_marks
from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.installs import read_install
from carrel.notebooks.promote.lines import Kind, Piece, split_cell
from carrel.notebooks.promote.magics import Context, cell_magic, file_written, line_magic, shell
from carrel.notebooks.promote.notebook import Cell, Notebook

#: Magics of ours, which a plain kernel does not have.
_OURS = ("gpu",)
_INSTALLERS = ("pip", "conda", "mamba")


def kept_notebook(notebook: Notebook, sources: dict[int, str]) -> str:
    """Return the notebook with only the chosen code cells; `sources` are their texts by index. Text cells all stay."""
    document: dict[str, Any] = copy.deepcopy(dict(notebook.document))
    cells = []
    for index, item in enumerate(document["cells"]):
        if item["cell_type"] == "code":
            if index not in sources:
                continue
            item.update(source=sources[index], outputs=[], execution_count=None)
            item.setdefault("metadata", {})
        cells.append(item)
    document["cells"] = cells
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def kept_source(cell: Cell, findings: Findings) -> tuple[str, ast.Module | None]:
    """Return a cell for the kernel of a task, and the Python in it for looking at.

    Installations become a part of the environment, and what asks for GPUs a part of the task; both become comments.
    """
    context = Context(cell=cell.number, findings=findings)
    read_marks(cell, context)
    lines: list[str] = []
    python: list[str] = []
    for piece in split_cell(cell.source):
        context.line = piece.line
        taken = _taken(piece, context)
        if piece.kind is Kind.PYTHON:
            python.append(piece.text)
        elif piece.kind is Kind.CELL_MAGIC and not taken:
            python.append(piece.body if piece.name in ("time", "capture", "timeit", "gpu") else "")
        else:
            python.append(f"{piece.indent}{piece.target or '_'} = None\n")
        lines.append(_comment(piece) if taken else piece.text)
    try:
        return "".join(lines), ast.parse("".join(python))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        findings.note(Severity.CHECK, "is not looked into: it is not plain Python", cell.number)
        return "".join(lines), None


def _taken(piece: Piece, context: Context) -> bool:
    """Tell whether a piece is taken out; what it asks for is in the findings then."""
    if piece.kind is Kind.MAGIC and piece.name in (*_OURS, *_INSTALLERS):
        line_magic(piece.name, piece.rest, context)
        return True
    if piece.kind in (Kind.SHELL, Kind.OUTPUT):
        installs = read_install(piece.rest) is not None
        shell(piece.rest, context)
        return installs
    if piece.kind is Kind.CELL_MAGIC and piece.name in ("writefile", "file"):
        file_written(piece, context)
    if piece.kind is Kind.CELL_MAGIC and piece.name in _OURS:
        cell_magic(piece, context)
        return True
    return False


def _comment(piece: Piece) -> str:
    first, newline, body = piece.text.partition("\n")
    if piece.kind is Kind.CELL_MAGIC:
        return f"# {first}{newline}{body}"
    return f"{piece.indent}pass  # {' '.join(piece.text.split())}\n" if piece.indent else f"# {' '.join(piece.text.split())}\n"
