"""Writes the file of compiled modules (`boot`), with the interpreter that will use it. ``python -P -m ... FILE``."""

from __future__ import annotations

import builtins
import dataclasses
import marshal
import os
import sys
import tempfile
import zlib
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from carrel.engines.slurm import boot

#: What the life of an ordinary attempt needs, with all that these import. What else is needed is imported as usual.
WANTED = (
    "carrel.engines.slurm.batch",
    "carrel.node.runner.finish",
    "carrel.node.runner.limits",
    "carrel.node.runner.samples",
    "carrel.node.runner.watch",
    "hashlib",
    "signal",
    "socket",
    "tempfile",
)
#: What is imported by those that are imported later (`boot.LATER`) alone.
_WITH_LATER = {*boot.LATER, "_compression", "ast", "dis", "linecache", "opcode", "token", "tokenize"}


def code_of(wanted: tuple[str, ...] = WANTED) -> dict[str, Any]:
    """Import what is wanted, and return what the file is to hold."""
    methods: dict[str, bytes] = {}

    def note(text: str, *scopes: Any) -> None:
        code = compile(text, "<string>", "exec")
        methods[text] = marshal.dumps(code)
        builtins.exec(code, *scopes)

    dataclasses.exec = note  # type: ignore[attr-defined]
    try:
        for name in wanted:
            import_module(name)
    finally:
        del dataclasses.exec  # type: ignore[attr-defined]
    modules = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        loader = getattr(spec, "loader", None)
        if spec is not None and type(loader) is SourceFileLoader and name not in _WITH_LATER and name != "__main__":
            places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
            modules[name] = (spec.origin, places, marshal.dumps(loader.get_code(name)))
    return {
        boot.PYTHON: sys.version,
        boot.PREFIX: sys.prefix,
        boot.PATHS: [path for path in sys.path if path],
        boot.MODULES: modules,
        boot.METHODS: methods,
    }


def packed(code: dict[str, Any]) -> bytes:
    """Return the content of the file (`boot.unpacked`)."""
    text = marshal.dumps(code)
    return boot.MAGIC + zlib.crc32(text).to_bytes(4, "big") + text


def write_code(path: Path, code: dict[str, Any]) -> None:
    """Write the file, whole or not at all."""
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".boot.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(packed(code))
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    write_code(Path(sys.argv[1]), code_of())
