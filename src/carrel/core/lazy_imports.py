"""Packages whose names cost nothing until they are used (PEP 562), as `lazy import` of Python 3.15 will do it (PEP 810)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_imports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package: what it imports ``if TYPE_CHECKING`` is imported when it is first used.

    So the names stand once, where readers and type checkers look for them. The package calls it in the `else` of that `if`.
    """
    module = sys.modules[package]
    loader: Any = module.__loader__  # of files or of a zip file: both have the source
    homes = {
        name.asname or name.name: (str(node.module), name.name)
        for block in ast.parse(loader.get_source(package)).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)
        home, original = homes[name]
        value = getattr(import_module(home), original)
        setattr(module, name, value)
        return value

    return get, lambda: sorted({*vars(module), *homes})
