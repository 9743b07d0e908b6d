"""Which variables a cell needs, and which it makes: read from its source. Pure."""

from __future__ import annotations

import ast
import builtins
import dis
import re
import types
from collections.abc import Iterable, Iterator

_BUILTIN = frozenset(dir(builtins))
_READS = frozenset({"LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
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

    A name counts as bound after a plain statement that binds it, and inside of a `for` or `with` that does.
    """
    found: dict[str, None] = {}
    body = ast.parse(source, filename).body
    _code(body, filename)  # what is wrong with it as a whole
    _read(body, set(), found, filename)
    return list(found)


def _read(body: list[ast.stmt], bound: set[str], found: dict[str, None], filename: str) -> None:
    for statement in body:
        blocks = _blocks(statement)
        for block in blocks:
            _read(block, bound.copy(), found, filename)
        if blocks or isinstance(statement, (ast.Break, ast.Continue)):
            continue
        code = _code([statement], filename)
        for name in (*_names(code, _READS), *_in_magics(statement)):
            if name not in bound and not (name.startswith("__") and name.endswith("__")):
                found.setdefault(name)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name) and statement.target.id not in bound:
            found.setdefault(statement.target.id)
        if isinstance(statement, _BINDS):
            bound.update(name for name in _names(code, _WRITES, deep=False) if name in _targets(statement))


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a statement that may or may not run, each after what is read and bound before it; none of a plain one."""
    match statement:
        case ast.For() | ast.AsyncFor():
            return [[_binds(statement.target, statement.iter), *statement.body], statement.orelse]
        case ast.With() | ast.AsyncWith():
            return [[*(_binds(one.optional_vars, one.context_expr) for one in statement.items), *statement.body]]
        case ast.If() | ast.While():
            return [[_binds(None, statement.test), *statement.body], statement.orelse]
        case ast.Try() | ast.TryStar():
            handlers = [[*([_binds(None, one.type)] if one.type else []), *one.body] for one in statement.handlers]
            return [statement.body, *handlers, statement.orelse, statement.finalbody]
        case ast.Match():
            patterns = [one for case in statement.cases for one in ast.walk(case.pattern) if isinstance(one, ast.expr)]
            guards = [case.guard for case in statement.cases if case.guard]
            first = [_binds(None, one) for one in (statement.subject, *patterns, *guards)]
            return [first, *(case.body for case in statement.cases)]
    return []


def _binds(target: ast.expr | None, value: ast.expr) -> ast.stmt:
    made = ast.Expr(value) if target is None else ast.Assign([target], value)
    return ast.copy_location(made, value)


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


def submodules(source: str, packages: Iterable[types.ModuleType], loaded: Iterable[str]) -> list[str]:
    """Return the `loaded` modules below `packages` that the cell may mean: `import os.path` gives it a variable `os` alone."""
    parts = set(_names(_code(ast.parse(source).body, "<cell>"), _ATTRIBUTES))
    roots = {one.__name__ for one in packages}
    return [
        name
        for name in list(loaded)
        if any(name.startswith(f"{root}.") and parts.issuperset(name[len(root) + 1 :].split(".")) for root in roots)
    ]


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
                yield from _named_in(text)
            else:
                for inserted in _INSERTED.findall(text):
                    yield from _named_in(inserted)


def _named_in(text: str) -> list[str]:
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
