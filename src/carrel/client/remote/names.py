"""Which variables a cell needs, and which it makes: read from its source. Pure."""

from __future__ import annotations

import ast
import builtins
import dis
import re
import types
from collections.abc import Iterator

_BUILTIN = frozenset(dir(builtins))
_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF"})
_WRITES = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_BINDS = (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_MAGICS = frozenset({"run_line_magic", "run_cell_magic", "system", "getoutput"})
#: Magics of cells that run them as Python.
_RUN_CODE = frozenset({"time", "timeit", "capture", "prun"})
_NAME = re.compile(r"[^\W\d]\w*")
#: What IPython inserts in the lines of magics and commands.
_INSERTED = re.compile(r"\{[^{}]*\}|\$[^\W\d]\w*")


def needed(source: str, filename: str = "<cell>") -> list[str]:
    """Return the names that the cell reads and does not bind before, in their order. Raises `SyntaxError`.

    A name counts as bound after a plain statement at the top level of the cell that binds it.
    """
    found: dict[str, None] = {}
    bound: set[str] = set()
    for statement in ast.parse(source, filename).body:
        code = _code([statement], filename)
        for name in _names(code, _READS):
            if name not in bound and not (name.startswith("__") and name.endswith("__")):
                found.setdefault(name)
        for name in _in_magics(statement):
            if name not in bound:
                found.setdefault(name)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            found.setdefault(statement.target.id)
        if isinstance(statement, _BINDS):
            bound.update(name for name in _names(code, _WRITES, deep=False) if name in _targets(statement))
    return list(found)


def made(source: str, filename: str = "<cell>") -> set[str] | None:
    """Return the names that the cell binds; None when that cannot be read from it (`import *`, `exec`, `%%time`)."""
    tree = ast.parse(source, filename)
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name == "*":
            return None
        if isinstance(node, ast.Name) and node.id in ("exec", "eval", "globals"):
            return None
        if isinstance(node, ast.Attribute) and node.attr in ("run_cell_magic", "run_line_magic"):
            return None
    return set(_names(_code(tree.body, filename), _WRITES))


def has_value(source: str) -> bool:
    """True when the cell's last statement is an expression."""
    body = ast.parse(source).body
    return bool(body) and isinstance(body[-1], ast.Expr)


def is_builtin(name: str) -> bool:
    """True for names that every Python has."""
    return name in _BUILTIN


def _code(body: list[ast.stmt], filename: str) -> types.CodeType:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return compile(ast.Module(body, []), filename, "exec", flags, dont_inherit=True)  # type: ignore[no-any-return]


def _names(code: types.CodeType, operations: frozenset[str], *, deep: bool = True) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in operations:
            yield str(instruction.argval)
    for constant in code.co_consts if deep else ():
        if isinstance(constant, types.CodeType):
            # Inside of functions and classes a STORE_NAME is not the cell's.
            yield from _names(constant, operations - {"STORE_NAME"})


def _in_magics(statement: ast.stmt) -> Iterator[str]:
    """Names that the statement's %magics and !commands may read, as their text stands in what IPython makes of them."""
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in _MAGICS:
            continue
        texts = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        runs = call.func.attr == "run_line_magic" or (call.func.attr == "run_cell_magic" and texts[0] in _RUN_CODE)
        for text in texts:
            if runs:
                yield from _read(text)
            else:
                for inserted in _INSERTED.findall(text):
                    yield from _read(inserted)


def _read(text: str) -> list[str]:
    try:
        return needed(text)
    except SyntaxError:
        return _NAME.findall(text)


def _targets(statement: ast.stmt) -> set[str]:
    """Names that the statement binds in any case: not those of an expression inside of it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {node.id for target in targets if target is not None for node in ast.walk(target) if isinstance(node, ast.Name)}
