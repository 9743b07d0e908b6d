"""From the name of a module to the name of the package that brings it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass

from carrel.notebooks.promote.import_names import DIFFERENT, NOWHERE, SAME

#: What pandas wants besides itself for some of its methods.
_WITH_PANDAS = {
    "plot": "matplotlib", "hist": "matplotlib", "boxplot": "matplotlib", "read_parquet": "pyarrow", "to_parquet": "pyarrow",
    "read_feather": "pyarrow", "to_feather": "pyarrow", "read_excel": "openpyxl", "to_excel": "openpyxl", "read_hdf": "tables",
    "to_hdf": "tables", "read_html": "lxml", "to_markdown": "tabulate",
}  # fmt: skip
_VARIANT = re.compile(r"(?:-(?:headless|cpu|gpu|binary|contrib|nightly|cu\d+|cuda\d*x?|rocm))+$")
_CATCHES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One module that code imports."""

    #: With dots.
    module: str
    line: int
    #: True when the code goes on without it (``try: import x / except ImportError``), or never runs it (``TYPE_CHECKING``).
    optional: bool = False
    #: What has the line, for people: "cell 3", "helper.py".
    origin: str = ""

    @property
    def top(self) -> str:
        """Its first part."""
        return self.module.partition(".")[0]


def find_imports(tree: ast.AST) -> list[Import]:
    """Return what code imports by absolute name, anywhere in it."""
    found: list[Import] = []
    _walk(tree, found, optional=False)
    return found


def package_of(module: str) -> str | None:
    """Return the package that brings a module, by the kept table of import names; None where the table does not have it.

    A name that is not in the table is never taken for a package: somebody could register it and run their code in the task.
    """
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        package = DIFFERENT.get(".".join(parts[:length]))
        if package is not None:
            return package
    return normal(parts[0]) if parts[0] in SAME else None


def nowhere(module: str) -> str | None:
    """Return what to say of a module that cannot be installed, or None."""
    return next((text for name, text in NOWHERE.items() if module == name or module.startswith(f"{name}.")), None)


def companions(tree: ast.AST) -> list[Import]:
    """Return what pandas imports for the methods that code uses; for code that uses pandas."""
    names = ((node.attr, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return [Import(module=_WITH_PANDAS[name], line=line) for name, line in names if name in _WITH_PANDAS]


def is_standard(module: str) -> bool:
    """Tell whether a module comes with Python."""
    return module.partition(".")[0] in sys.stdlib_module_names


def normal(name: str) -> str:
    """Return a package's name as indexes compare it (PyPA, "Names and normalization")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def matching(module: str, names: Collection[str]) -> str | None:
    """Return the package among `names` (normal ones) that brings a module, as far as names tell."""
    top = normal(module.partition(".")[0])
    likely = package_of(module) or top
    if normal(likely) in names:
        return normal(likely)
    # opencv-python-headless, tensorflow-cpu, psycopg2: variants of a package bring the same module.
    if top in names:
        return top
    plain = _VARIANT.sub("", normal(likely))
    return next((name for name in sorted(names) if _VARIANT.sub("", name) in (plain, top)), None)


def _walk(node: ast.AST, found: list[Import], *, optional: bool) -> None:
    if isinstance(node, ast.Try):
        forgiven = any(_catches(handler) for handler in node.handlers)
        for statement in node.body:
            _walk(statement, found, optional=optional or forgiven)
        # What a handler imports instead is an alternative as well.
        for handler in node.handlers:
            _walk(handler, found, optional=optional or forgiven)
        for statement in [*node.orelse, *node.finalbody]:
            _walk(statement, found, optional=optional)
        return
    if isinstance(node, ast.If) and _is_for_types(node.test):
        for statement in node.body:
            _walk(statement, found, optional=True)
        for statement in node.orelse:
            _walk(statement, found, optional=optional)
        return
    match node:
        case ast.Import(names=names, lineno=line):
            found += [Import(module=alias.name, line=line, optional=optional) for alias in names]
        case ast.ImportFrom(module=str(module), level=0, names=names, lineno=line):
            # `from google.cloud import storage`: what is imported may tell the package.
            wholes = [f"{module}.{alias.name}" for alias in names]
            modules = dict.fromkeys(whole if whole in DIFFERENT or whole in NOWHERE else module for whole in wholes)
            found += [Import(module=one, line=line, optional=optional) for one in modules]
        case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_], lineno=line):
            name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
            if name in ("import_module", "__import__") and not module.startswith("."):
                found.append(Import(module=module, line=line, optional=optional))
    for child in ast.iter_child_nodes(node):
        _walk(child, found, optional=optional)


def _is_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(one, ast.Name) and one.id in _CATCHES for one in types)
