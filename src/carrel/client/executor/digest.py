"""What a call is, as a digest: the same function with the same arguments has the same one in every process.

A pickle will not do: it has line numbers and paths of files, names that classes are given anew in each process, sets in the order
of that process, and says whether two equal strings are one object. Here counts what the function does:

* of a function: its code (instructions, constants, names), defaults, annotations, closure, and the globals that it names; not its
  lines or its file. One that is imported from a module counts by its name: the module's content is the pool's;
* of a value: its content. Sets have no order, dictionaries have the one in which they were filled. Arrays: shape, type, bytes;
* of anything else: what pickle would keep of it.
"""

from __future__ import annotations

import dis
import hashlib
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterable
from copyreg import dispatch_table
from pathlib import Path
from typing import Any

import cloudpickle

_ATOMS = (type(None), type(...), type(NotImplemented), bool, int, complex, str)
#: What a class has that is not what it does.
_SKIPPED = frozenset(
    {"__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__", "__annotations_cache__", "_abc_impl"}
)


def digest(value: Any, name: Callable[[Any], str | None] = lambda _: None) -> bytes:
    """Return the digest of a value. `name`: what stands for one, where it has another name than its content.

    Raises what a value raises when it is pickled.
    """
    return _Walk(name).of(value)


def digest_of_files(directory: Path, skipped: Iterable[str] = ()) -> str:
    """Return the digest of all files of a directory, by their names; `skipped` are names at its top."""
    found = hashlib.sha256()
    top = frozenset(skipped)
    for path in sorted(directory.rglob("*")):
        where = path.relative_to(directory)
        if path.is_file() and where.parts[0] not in top:
            found.update(_joined([str(where).encode(), path.read_bytes()]))
    return found.hexdigest()


class _Walk:
    """Digests one value; what it has seen is remembered, and a circle ends where it began."""

    def __init__(self, name: Callable[[Any], str | None]) -> None:
        self._name = name
        self._open: dict[int, int] = {}
        #: By identity; the values are held so that no other one gets the same.
        self._known: dict[int, tuple[bytes, Any]] = {}
        #: Depth of the outermost value to which a circle leads back.
        self._outermost = sys.maxsize

    def of(self, value: Any) -> bytes:
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        if id(value) in self._open:
            depth = self._open[id(value)]
            self._outermost = min(self._outermost, depth)
            return _hash("circle", [str(len(self._open) - depth).encode()])
        depth = self._open[id(value)] = len(self._open)
        before, self._outermost = self._outermost, sys.maxsize
        try:
            found = self._content(value)
        finally:
            del self._open[id(value)]
        # Inside of a circle a digest holds for the place alone.
        if self._outermost >= depth:
            self._known[id(value)] = (found, value)
            self._outermost = before
        else:
            self._outermost = min(before, self._outermost)
        return found

    def _content(self, value: Any) -> bytes:
        kind = type(value)
        named = self._name(value)
        if named is not None:
            return _hash("named", [named.encode()])
        if kind in _ATOMS:
            return _hash(kind.__name__, [repr(value).encode("utf-8", "surrogatepass")])
        if kind is float:
            return _hash("float", [struct.pack(">d", value)])
        if kind in (bytes, bytearray):
            return _hash(kind.__name__, [bytes(value)])
        if kind in (list, tuple):
            return _hash(kind.__name__, [self.of(one) for one in value])
        if kind in (set, frozenset):
            return _hash(kind.__name__, sorted(self.of(one) for one in value))
        if kind is dict:
            return _hash("dict", [self.of(one) for pair in value.items() for one in pair])
        if isinstance(value, types.ModuleType):
            return _hash("module", [value.__name__.encode()])
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.FunctionType):
            return self._imported(value) or self._function(value)
        if isinstance(value, type):
            return self._imported(value) or self._class(value)
        if isinstance(value, types.CellType):
            return _hash("cell", [self.of(value.cell_contents)] if _filled(value) else [])
        if isinstance(value, types.MappingProxyType):
            return _hash("mappingproxy", [self.of(dict(value))])
        if isinstance(value, (classmethod, staticmethod)):
            return _hash(kind.__name__, [self.of(value.__func__)])
        if isinstance(value, property):
            return _hash("property", [self.of(one) for one in (value.fget, value.fset, value.fdel)])
        return self._reduced(value)

    @staticmethod
    def _imported(value: Any) -> bytes | None:
        """Of what a worker imports, by its name; None for what travels with the call."""
        module, name = getattr(value, "__module__", None), value.__qualname__
        if module in (None, "__main__", "__mp_main__") or "<locals>" in name:
            return None
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return _hash("imported", [module.encode(), name.encode()]) if found is value else None

    def _code(self, code: types.CodeType) -> bytes:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_name, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        table = getattr(code, "co_exceptiontable", b"")
        return _hash("code", [self.of(one) for one in (code.co_code, table, counts, names, code.co_consts)])

    def _function(self, function: types.FunctionType) -> bytes:
        scope = function.__globals__
        named = {name: scope[name] for name in sorted(_names(function.__code__)) if name in scope}
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__, function.__closure__, named)
        extra = {key: function.__dict__[key] for key in sorted(function.__dict__)}
        return _hash("function", [self.of(one) for one in (*parts, function.__annotations__, extra)])

    def _class(self, found: type) -> bytes:
        kept = {key: one for key, one in sorted(vars(found).items()) if key not in _SKIPPED and not _slot(one)}
        parts = (found.__qualname__, found.__bases__, type(found), kept)
        return _hash("class", [self.of(one) for one in parts])

    def _reduced(self, value: Any) -> bytes:
        kind = type(value)
        # Not of its subclasses: a masked array's bytes do not say what is masked.
        if (kind.__module__, kind.__qualname__) == ("numpy", "ndarray") and not value.dtype.hasobject:
            return _hash("array", [f"{value.dtype.descr} {value.shape}".encode(), value.tobytes()])
        if isinstance(value, pickle.PickleBuffer):
            return _hash("buffer", [bytes(value.raw())])
        special = dispatch_table.get(kind)
        try:
            said = special(value) if special is not None else value.__reduce_ex__(4)
        except TypeError:  # cloudpickle has its ways; what it writes may differ between processes, and is never too much alike
            return _hash("pickle", [cloudpickle.dumps(value, protocol=4)])
        if isinstance(said, str):
            module = getattr(value, "__module__", None) or type(value).__module__
            inner = [self.of(value.__wrapped__)] if hasattr(value, "__wrapped__") else []
            return _hash("name", [str(module).encode(), said.encode(), *inner])
        function, args, *more = said
        state, items, pairs = (*more, None, None, None)[:3]
        parts = (function, args, state, None if items is None else list(items), None if pairs is None else list(pairs))
        return _hash("object", [self.of(one) for one in parts])


def _names(code: types.CodeType) -> set[str]:
    """Names of globals that code uses, and functions within it."""
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            found |= _names(one)
    return found


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises when the cell is empty
    except ValueError:
        return False
    return True


def _slot(value: Any) -> bool:
    return isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType))


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(struct.pack(">Q", len(part)) + part for part in parts)


def _hash(kind: str, parts: Iterable[bytes]) -> bytes:
    return hashlib.sha256(_joined([kind.encode(), *parts])).digest()
