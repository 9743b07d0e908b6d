"""Putting the script together."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from carrel.notebooks.promote.awaiting import needs_loop, own_nodes, wrap
from carrel.notebooks.promote.cells import Converted
from carrel.notebooks.promote.edits import Edits
from carrel.notebooks.promote.findings import Findings, Severity
from carrel.notebooks.promote.magics import SUPPORT
from carrel.notebooks.promote.mentions import plain_strings
from carrel.notebooks.promote.packages import find_imports
from carrel.notebooks.promote.parameters import Parameter, edit_parameters

#: Calls whose value nobody wants to see: they return nothing.
_SILENT = ("print", "display")
#: Names that IPython gives to every cell.
_GIVEN = ("display", "get_ipython")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A cell that goes into the script."""

    cell: Converted
    #: The parameters that it sets, when it is the cell for them.
    parameters: list[tuple[Parameter, ast.expr]]


def write_script(
    pieces: Sequence[Piece],
    *,
    heading: str,
    findings: Findings,
    bound: Collection[str],
    replaced: Mapping[str, str],
) -> str:
    """Return the script. `bound` are the names that cells bind; `replaced` are texts of strings that stand for other files."""
    futures: list[str] = []
    # Nothing can be drawn before something is imported.
    first = next((index for index, piece in enumerate(pieces) if find_imports(piece.cell.tree)), 0)
    body = [
        _cell(piece, findings, futures, replaced, draws=findings.plots and index >= first) for index, piece in enumerate(pieces)
    ]
    parameters = [parameter for piece in pieces for parameter, _ in piece.parameters]
    used = {node.id for piece in pieces for node in ast.walk(piece.cell.tree) if isinstance(node, ast.Name)}
    given = [name for name in _GIVEN if name in used and name not in bound]
    if "get_ipython" in given:
        findings.note(Severity.CHECK, "get_ipython() is None in the script, as outside IPython")
    return _head(heading, futures, parameters, given, plots=findings.plots) + "\n".join(body)


def _head(heading: str, futures: Sequence[str], parameters: Sequence[Parameter], given: Sequence[str], *, plots: bool) -> str:
    lines = [f'"""{heading}"""', ""]
    if futures:
        lines += [f"from __future__ import {', '.join(dict.fromkeys(futures))}", ""]
    lines += [
        "import argparse as _argparse",
        "import sys as _sys",
        "",
        f"import notebook_support as {SUPPORT}",
        "",
        '_parser = _argparse.ArgumentParser(allow_abbrev=False, conflict_handler="resolve")',
    ]
    lines += [f"_parser.add_argument({_argument(parameter)})" for parameter in parameters]
    lines += [
        "_parameters = _parser.parse_args()",
        "del _sys.argv[1:]",
        "# As in a notebook. Processes that multiprocessing starts would run all cells again if they found the file.",
        "del __file__",
    ]
    lines += [f"{name} = {SUPPORT}.{name}" for name in given]
    if plots:
        lines.append(f"{SUPPORT}.use_figures()")
    return "\n".join(lines) + "\n\n"


def _argument(parameter: Parameter) -> str:
    words = [repr(parameter.option), f"dest={parameter.name!r}"]
    if parameter.reader:
        words.append(f"type={parameter.reader}")
    words.append(f"default={parameter.value!r}")
    if parameter.help:
        words.append(f"help={parameter.help.replace('%', '%%')!r}")
    return ", ".join(words)


def _cell(piece: Piece, findings: Findings, futures: list[str], replaced: Mapping[str, str], *, draws: bool) -> str:
    cell = piece.cell
    edits = Edits(cell.code)
    edit_parameters(edits, piece.parameters)
    parameters = {id(value) for _, value in piece.parameters}
    _take_futures(cell, edits, futures)
    _plain_progress(cell, edits, findings)
    for node in own_nodes(cell.tree):
        if isinstance(node, ast.Global):  # all names of a cell are; said twice, in two cells, Python refuses it
            edits.replace(*edits.span(node), "pass")
    for node in plain_strings(cell.tree):
        if str(node.value) in replaced and id(node) not in parameters:
            edits.replace(*edits.span(node), repr(replaced[str(node.value)]))
    _replace_in_commands(cell, edits, replaced)
    _show_last(cell, edits)
    code = edits.done().rstrip("\n") + "\n"
    if needs_loop(cell.tree):
        code = wrap(code, cell.cell.number)
    lines = [f"# %% [cell {cell.cell.number}]", *cell.block.before, code.strip("\n"), *cell.block.behind]
    if draws:
        lines.append(f"{SUPPORT}.end_cell()")
    return "\n".join(lines) + "\n"


def _replace_in_commands(cell: Converted, edits: Edits, replaced: Mapping[str, str]) -> None:
    """Words of commands that stand for other files."""
    for node in ast.walk(cell.tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        text = node.args[0]
        ours = isinstance(node.func.value, ast.Name) and node.func.value.id == SUPPORT
        if ours and isinstance(text, ast.Constant) and isinstance(text.value, str):
            changed = text.value
            for path, place in replaced.items():
                changed = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w./-])", lambda _, place=place: place, changed)  # type: ignore[misc]
            if changed not in (text.value, replaced.get(text.value)):
                edits.replace(*edits.span(text), repr(changed))


def _take_futures(cell: Converted, edits: Edits, futures: list[str]) -> None:
    """Statements for the future stand at the top of a file."""
    for node in cell.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            futures += [alias.name for alias in node.names]
            edits.replace(*edits.span(node), f"# {' '.join(edits.source(node).split())}")


def _plain_progress(cell: Converted, edits: Edits, findings: Findings) -> None:
    """Progress bars of a notebook need one; tqdm's others are for logs."""
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("tqdm.notebook", "tqdm.autonotebook"):
            start, end = edits.span(node)
            edits.replace(start, end, edits.text[start:end].replace(node.module, "tqdm", 1))
            findings.note(Severity.CHANGED, f"{node.module} is for notebooks: tqdm", cell.cell.number, cell.line(node.lineno))


def _show_last(cell: Converted, edits: Edits) -> None:
    """The value of a cell's last expression is shown, unless a semicolon follows it."""
    last = cell.tree.body[-1] if cell.tree.body else None
    if not isinstance(last, ast.Expr) or _is_silent(last.value):
        return
    start, end = edits.span(last)
    behind = "".join(line.partition("#")[0] for line in edits.text[end:].split("\n"))
    if ";" in behind:
        return
    opening, closing = ("((", "))") if isinstance(last.value, ast.Tuple) else ("(", ")")
    edits.replace(start, start, f"{SUPPORT}.show{opening}")
    edits.replace(end, end, closing)


def _is_silent(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    function = value.func
    if isinstance(function, ast.Name):
        return function.id in _SILENT
    if isinstance(function, ast.Attribute):
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        return (owner == SUPPORT and function.attr != "output") or owner in ("_timer", "_cell_timer") or function.attr == "show"
    return False
