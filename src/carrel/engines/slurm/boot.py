"""Starts the guardian of a batch script. ``python -I -S boot.py CODE ATTEMPT...``, where CODE is a file that `write_code` made.

Looking for a hundred modules on a shared disk and making fifty dataclasses cost a batch script more processor time than all else
that it does before the command begins. Here modules come from one file, compiled; so do the methods that `dataclasses` writes as
text and compiles each time. Where the file is not there, is not whole, is another Python's or somebody else's, everything is
imported as usual.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys

if __name__ == "__main__":
    gc.disable()  # nothing that is imported becomes garbage

TYPE_CHECKING = False  # the one of `typing` would have to be imported
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    #: Where a module came from, the directories of a package (None: it is none), and its code.
    Modules = Mapping[str, tuple[str, list[str] | None, bytes]]

#: What the file begins with; then the CRC-32 of the rest, in four bytes.
MAGIC = b"carrel boot 1\n"
#: What is in the rest, by its key.
PYTHON, PREFIX, PATHS, MODULES, METHODS = "python", "prefix", "paths", "modules", "methods"
#: Modules that others import and hardly ever use: `dataclasses` the first, for classes without a docstring, `urllib.parse` the
#: second, for addresses in brackets, `shutil` the others, for archives.
LATER = ("inspect", "ipaddress", "bz2", "lzma")
_Spec: type[ModuleSpec] = type(sys.__spec__)


class Compiled:
    """Finds and loads modules that are in the file (importlib.abc.MetaPathFinder and Loader)."""

    def __init__(self, modules: Modules, methods: Mapping[str, bytes]) -> None:
        self._modules = modules
        self._methods = methods

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Return how a module of the file is loaded; None for others."""
        found = self._modules.get(name)
        if found is None:
            return None
        spec = _Spec(name, self, origin=found[0], is_package=found[1] is not None)  # type: ignore[arg-type]
        spec.has_location = True
        if found[1] is not None:
            spec.submodule_search_locations = found[1]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave that to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        exec(marshal.loads(self._modules[module.__name__][2]), module.__dict__)
        if module.__name__ == "dataclasses":
            module.exec = self._exec  # type: ignore[attr-defined] # which it finds before the built-in one

    def _exec(self, text: str, *scopes: dict[str, Any]) -> None:
        code = self._methods.get(text)
        exec(text if code is None else marshal.loads(code), *scopes)


class _Later(type(sys)):  # type: ignore[misc]
    """Stands for a module that hardly anybody needs, until somebody does."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system looks for some
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(__import__(self.__name__), name)


def unpacked(data: bytes) -> Any:
    """Return what the file holds. Raises `ValueError` for one that is damaged.

    That has to be known before: of damaged data `marshal` may ask for all memory that there is, and never come back.
    """
    import zlib

    begin = len(MAGIC) + 4
    if data[: len(MAGIC)] != MAGIC or int.from_bytes(data[len(MAGIC) : begin], "big") != zlib.crc32(data[begin:]):
        raise ValueError("not what was written")
    return marshal.loads(data[begin:])


def use(file: str) -> bool:
    """Import from the file from now on; return whether that is possible."""
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return False  # somebody else's, or written by somebody else
            code = unpacked(opened.read())
        if code[PYTHON] != sys.version:
            return False
        compiled = Compiled(code[MODULES], code[METHODS])
        sys.prefix = sys.exec_prefix = code[PREFIX]
        sys.path += [path for path in code[PATHS] if path not in sys.path]
    except (OSError, ValueError, EOFError, TypeError, KeyError, ImportError):
        return False
    sys.meta_path.insert(0, compiled)
    sys.modules.update({name: _Later(name) for name in LATER})
    return True


if __name__ == "__main__":
    if not use(sys.argv[1]):
        import site

        site.main()  # what -S has left out
        sys.path.append(os.path.abspath(f"{__file__}/../../../.."))  # noqa: PTH100
    from carrel.engines.slurm.batch import main

    os._exit(main(sys.argv[2:]))
