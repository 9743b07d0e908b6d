"""Cells that await: a notebook runs them in an event loop, and their names are global all the same."""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterator

from carrel.notebooks.promote.edits import Edits, line_numbers_in_strings
from carrel.notebooks.promote.magics import SUPPORT

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
#: What asks for the running loop, which a notebook always has.
_WANT_LOOP = ("create_task", "ensure_future", "gather", "get_running_loop", "get_event_loop", "current_task", "all_tasks")
_WIDTH = 100


def needs_loop(tree: ast.Module) -> bool:
    """Tell whether the statements of a cell need a running event loop."""
    for node in own_nodes(tree):
        if isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (isinstance(node, ast.comprehension) and node.is_async):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WANT_LOOP:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "asyncio":
                return True
    return False


def wrap(code: str, number: int) -> str:
    """Return a cell as a coroutine that is run at once, with all its names global."""
    edits = Edits(code)
    first: list[str] = []
    for node in own_nodes(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            first.append(edits.source(node))
            edits.replace(*edits.span(node), "pass")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            # What is declared global can have no annotation.
            start, end = edits.span(node)
            if node.value is None:
                edits.replace(start, end, "pass")
            else:
                edits.replace(start, edits.span(node.value)[0], f"{node.target.id} = ")
    code = edits.done()
    body = _indented(code)
    name = f"_cell_{number}"
    shared = _global_lines(_names(f"async def {name}():\n{body}"))
    head = "".join(f"{line}\n" for line in first)
    return f"{head}async def {name}():\n{shared}{body}\n\n{SUPPORT}.wait({name}())\n"


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a cell that are not in a function or class of its own."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from own_nodes(child)


def _indented(code: str) -> str:
    inside = line_numbers_in_strings(ast.parse(code))
    lines = code.rstrip("\n").split("\n")
    indented = [line if number in inside or not line else f"    {line}" for number, line in enumerate(lines, start=1)]
    return "\n".join(indented) + "\n" + ("" if ast.parse(code).body else "    pass\n")


def _names(function: str) -> list[str]:
    """Return the names that a function binds."""
    (table,) = symtable.symtable(function, "cell", "exec").get_children()
    return sorted(symbol.get_name() for symbol in table.get_symbols() if symbol.is_local())


def _global_lines(names: list[str]) -> str:
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + len(name) < _WIDTH:
            lines[-1] += f", {name}"
        else:
            lines.append(f"    global {name}")
    return "".join(f"{line}\n" for line in lines)
