"""What the chosen cells are: their code as Python, their parameters, and the names that they share."""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from carrel.core.domain.errors import Invalid
from carrel.notebooks.promote.cells import Converted, convert, python_of
from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.kept import kept_source
from carrel.notebooks.promote.magics import SUPPORT, Context
from carrel.notebooks.promote.notebook import Cell, Notebook
from carrel.notebooks.promote.parameters import TAG, Parameter, read_parameters
from carrel.notebooks.promote.selection import read_selection

#: Tags of cells that stay out of the task.
_SKIP = ("skip", "remove", "remove_cell", "remove-cell")
#: Names that every cell has, besides Python's own.
_GIVEN = frozenset({"display", "get_ipython", "_exit_code", SUPPORT, "__name__", "__doc__", "__builtins__"})
_HISTORY = re.compile(r"_{1,3}|_i{0,3}\d*|In|Out|_oh|_ih|_dh")
_ASKS = ("input", "getpass")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCell:
    """One chosen cell."""

    cell: Cell
    tree: ast.Module
    code: str
    #: For each line of the code, the line of the cell.
    origin: tuple[int, ...]
    #: None where the notebook itself is the task.
    converted: Converted | None
    #: The text of the cell in a notebook that is kept.
    kept: str

    def line(self, number: int) -> int:
        """Return the line of the cell for a line of the code."""
        return self.origin[min(number, len(self.origin)) - 1] if self.origin else number


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All chosen cells."""

    cells: tuple[ReadCell, ...]
    #: Cells with code that are not part of the task.
    left_out: tuple[Cell, ...]
    #: The number of the cell for parameters with them, and with the expressions of their values.
    parameters: tuple[int, list[tuple[Parameter, ast.expr]]]
    #: Names that the cells bind.
    bound: frozenset[str]


def read_cells(notebook: Notebook, selection: str | None, findings: Findings, *, keep: bool) -> Reading:
    """Read the chosen cells; raise `Invalid` when none is left, or when one cannot become part of a script."""
    count = len(notebook.cells)
    numbers = read_selection(selection, count) if selection is not None else tuple(range(1, count + 1))
    chosen = [cell for cell in notebook.cells if cell.number in numbers and not cell.tags & set(_SKIP)]
    for cell in notebook.cells:
        if cell.number in numbers and cell.tags & set(_SKIP):
            findings.note(Severity.CHANGED, f"has the tag {min(cell.tags & set(_SKIP))} and is left out", cell.number)
    if not chosen:
        raise Invalid("No cell is left: all have the tag skip or remove.", remedy="Choose others with --cells.")
    found = [_kept(cell, findings) if keep else _converted(cell, notebook, findings) for cell in chosen]
    findings.raise_faults()
    cells = tuple(cell for cell in found if cell is not None)
    left_out = tuple(cell for cell in notebook.cells if cell not in chosen)
    parameters = _parameters(cells, findings)
    bound, used = _names(cells)
    _check_names(cells, left_out, bound, used, findings, keep=keep)
    _check_use(cells, findings)
    if parameters[0] == 0 and any(TAG in cell.tags for cell in left_out):
        findings.note(Severity.CHECK, "the cell for parameters is left out: the task has none")
    return Reading(cells=cells, left_out=left_out, parameters=parameters, bound=frozenset(bound))


def _converted(cell: Cell, notebook: Notebook, findings: Findings) -> ReadCell | None:
    others = " ".join(other.source for other in notebook.cells if other is not cell)
    used = frozenset(re.findall(r"[^\W\d]\w*", others)) if "%%capture" in cell.source else frozenset()
    made = convert(cell, Context(cell=cell.number, findings=findings, used=used))
    if made is None:
        return None
    return ReadCell(cell=cell, tree=made.tree, code=made.code, origin=made.block.origin, converted=made, kept="")


def _kept(cell: Cell, findings: Findings) -> ReadCell:
    text, tree = kept_source(cell, findings)
    code = ast.unparse(tree) if tree else ""
    return ReadCell(cell=cell, tree=tree or ast.Module(body=[], type_ignores=[]), code=code, origin=(), converted=None, kept=text)


def _parameters(cells: Sequence[ReadCell], findings: Findings) -> tuple[int, list[tuple[Parameter, ast.expr]]]:
    tagged = [cell for cell in cells if TAG in cell.cell.tags]
    for cell in tagged[1:]:
        findings.note(
            Severity.CHECK, f"has the tag {TAG} too: only those of cell {tagged[0].cell.number} are parameters", cell.cell.number
        )
    if not tagged:
        return 0, []
    first = tagged[0]
    return first.cell.number, read_parameters(
        first.tree, first.code if first.converted else first.kept, first.cell, first.line, findings
    )


# --- names


def _names(cells: Iterable[ReadCell]) -> tuple[set[str], dict[str, ReadCell]]:
    """Return the names that cells bind, and those that they use with the first cell that does."""
    bound: set[str] = set()
    used: dict[str, ReadCell] = {}
    for cell in cells:
        try:
            table = symtable.symtable(cell.code, "cell", "exec")
        except (SyntaxError, ValueError, RecursionError):
            continue
        mine: set[str] = set()
        _look(table, bound, mine, top=True)
        for name in mine:
            used.setdefault(name, cell)
    return bound, used


def _look(table: symtable.SymbolTable, bound: set[str], used: set[str], *, top: bool) -> None:
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if top or symbol.is_global():
            if symbol.is_assigned() or symbol.is_imported():
                bound.add(name)
            if symbol.is_referenced():
                used.add(name)
    for child in table.get_children():
        _look(child, bound, used, top=False)


def _check_names(
    cells: Sequence[ReadCell],
    left_out: Sequence[Cell],
    bound: Collection[str],
    used: dict[str, ReadCell],
    findings: Findings,
    *,
    keep: bool,
) -> None:
    """Say which names nothing in the task binds."""
    elsewhere: dict[str, int] = {}
    for other in left_out:
        for name in _binds(python_of(other.source)):
            elsewhere.setdefault(name, other.number)
    open_ended = any(
        (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "run"
            and isinstance(node.value, ast.Name)
            and node.value.id == SUPPORT
        )
        for cell in cells
        for node in ast.walk(cell.tree)
    )
    for name, cell in sorted(used.items(), key=lambda item: (item[1].cell.number, item[0])):
        if name in bound or name in _GIVEN or hasattr(builtins, name):
            continue
        line = cell.line(next((node.lineno for node in ast.walk(cell.tree) if isinstance(node, ast.Name) and node.id == name), 1))
        where = (cell.cell.number, line if cell.origin else None)
        if name in elsewhere:
            findings.note(Severity.CHECK, f"{name} comes from cell {elsewhere[name]}, which is left out", *where)
        elif not keep and _HISTORY.fullmatch(name):
            findings.note(Severity.CHECK, f"{name} is IPython's memory of earlier cells, which a script does not have", *where)
        elif not open_ended and not keep:
            findings.note(Severity.CHECK, f"{name} is defined in no cell", *where)


def _binds(tree: ast.Module | None) -> set[str]:
    if tree is None:
        return set()
    bound: set[str] = set()
    try:
        _look(symtable.symtable(ast.unparse(tree), "cell", "exec"), bound, set(), top=True)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    return bound


def _check_use(cells: Sequence[ReadCell], findings: Findings) -> None:
    """Say where nobody will answer, and where a GPU may be wanted."""
    for cell in cells:
        number = cell.cell.number
        for node in ast.walk(cell.tree):
            if isinstance(node, ast.Call):
                function = node.func
                name = (
                    function.attr
                    if isinstance(function, ast.Attribute)
                    else function.id
                    if isinstance(function, ast.Name)
                    else ""
                )
                if name in _ASKS:
                    findings.note(
                        Severity.CHECK, f"{name}() waits for an answer, and nobody is there", number, cell.line(node.lineno)
                    )
    first = next((cell for cell in cells if re.search(r"\bcuda\b", cell.cell.source)), None)
    if findings.gpus is None and first is not None:
        findings.note(
            Severity.CHECK,
            "CUDA is mentioned and no cell asks for a GPU: give --gpus to `carrel run`, or write `# carrel: gpus=1`",
            first.cell.number,
        )
