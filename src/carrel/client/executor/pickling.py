"""Values on their way: large arrays lie beside the pickle, as they are in memory (PEP 574). It travels with the workers."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import io
import pickle
import struct
import types
import weakref
from collections.abc import Callable
from typing import IO, Any

_ALIGNED = 64


class Traceable:
    """A base beside `cloudpickle.Pickler`: code keeps the name of its file, and what `functools` has wrapped travels."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is made there."""
        if isinstance(obj, types.CodeType):
            make, args = self.dispatch_table[types.CodeType](obj)  # type: ignore[attr-defined] # of the pickler beside it
            # cloudpickle 3.1.3 leaves the name out; tracebacks have no lines without it.
            return make, tuple(obj.co_filename if one == "<dynamic-code>" else one for one in args)
        made = _of_functools(obj)
        return super().reducer_override(obj) if made is None else made  # type: ignore[misc] # of the pickler beside it


class Faithful(Traceable):
    """The same, and exceptions are made anew without `__init__`, by this module."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how `obj` is made there."""
        if isinstance(obj, BaseException) and not _loses_arguments(type(obj)) and _is_tblibs(type(obj)):
            return obj.__reduce_ex__(5)
        if isinstance(obj, BaseException) and _loses_arguments(type(obj)):
            first = (obj.message, obj.exceptions) if isinstance(obj, BaseExceptionGroup) else obj.args
            return _make, (type(obj), first), _state(obj), None, None, _fill
        return super().reducer_override(obj)


def _of_functools(obj: Any) -> tuple[Any, ...] | None:
    """How functions, methods and properties that `functools` has wrapped are made there: cloudpickle 3.1.3 has no way."""
    if isinstance(obj, functools._lru_cache_wrapper):
        if obj.__module__ == "__main__" or "<locals>" in obj.__qualname__:  # else it is known by its name
            sizes: Any = obj.cache_parameters()
            made = (obj.__wrapped__, sizes["maxsize"], sizes["typed"], functools._CacheInfo)
            return functools._lru_cache_wrapper, made, vars(obj)
    elif type(obj) is functools.cached_property:
        return type(obj), (obj.func,), {"attrname": obj.attrname}  # Python 3.11 has a lock in it
    elif type(obj) is weakref.WeakKeyDictionary:  # of `singledispatch`
        return type(obj), (dict(obj),)
    return None


def _loses_arguments(cls: type[BaseException]) -> bool:
    """True for an exception that pickle would make by calling code of its class with `args`, which may be others there."""
    own = any(isinstance(getattr(cls, name), types.FunctionType) for name in ("__init__", "__new__", "__setattr__"))
    return own and not any(isinstance(getattr(cls, name, None), types.FunctionType) for name in _OWN_WAYS)


def _is_tblibs(cls: type[BaseException]) -> bool:
    """True where importing `distributed` has made tblib the way of all exceptions: workers need not have it."""
    return getattr(copyreg.dispatch_table.get(cls), "__module__", "").startswith("tblib")


_OWN_WAYS = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")


def _state(error: BaseException) -> dict[str, Any]:
    found = {}
    for cls in type(error).__mro__:
        for name, kind in vars(cls).items():
            if isinstance(kind, (types.MemberDescriptorType, types.GetSetDescriptorType)) and not name.startswith("__"):
                value = getattr(error, name, None)
                if value is not None or cls.__module__ != "builtins":  # those are None as long as nothing sets them
                    found[name] = value
    return found | vars(error)


def _make(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    builtin = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    made: BaseException = builtin.__new__(cls, *args)
    return made


def _fill(error: BaseException, state: dict[str, Any]) -> None:
    for name, value in state.items():
        with contextlib.suppress(AttributeError, TypeError):  # what `__new__` has set can be set by it alone
            object.__setattr__(error, name, value)


@functools.cache
def _pickler(base: type) -> Any:
    import cloudpickle  # the caller's own version lies beside a worker

    return type("Pickler", (base, cloudpickle.Pickler), {})


def write(value: Any, file: IO[bytes]) -> None:
    """Pickle a value for a program that has cloudpickle, and not this module."""
    _pickler(Traceable)(file).dump(value)


def dump(value: Any) -> list[Any]:
    """Return the parts of a pickled value, to be sent one after the other: sizes, the pickle, its buffers."""
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _pickler(Faithful)(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return parts(file.getvalue(), buffers)


def parts(text: bytes, buffers: list[pickle.PickleBuffer]) -> list[Any]:
    """Return the parts of what was pickled."""
    raw = [buffer.raw() for buffer in buffers]
    if raw:  # what follows the end of a pickle is not read: the first array begins where processors like it
        text += bytes(-(4 + 8 * (1 + len(raw)) + len(text)) % _ALIGNED)
    sizes = [len(text), *(len(view) for view in raw)]
    return [struct.pack(f">I{len(sizes)}Q", len(sizes), *sizes), text, *raw]


def load(data: Any, result_of: Callable[[Any], Any] | None = None) -> Any:
    """Return the value whose parts are in `data`. Its arrays stand on `data` itself, and nothing is copied.

    `result_of` gives what a call returned, or a value that the pool has: arguments name calls by number, values by digest.
    """
    view = memoryview(data)
    (count,) = struct.unpack_from(">I", view)
    sizes = struct.unpack_from(f">{count}Q", view, 4)
    place = 4 + 8 * count
    found = []
    for size in sizes:
        found.append(view[place : place + size])
        place += size
    return _Unpickler(found, result_of).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, found: list[Any], result_of: Callable[[Any], Any] | None = None) -> None:
        super().__init__(io.BytesIO(found[0]), buffers=found[1:])
        self._result_of = result_of

    def persistent_load(self, pid: Any) -> Any:
        if self._result_of is None:
            raise pickle.UnpicklingError("A call is named where no result can take its place.")
        return self._result_of(pid)

    def find_class(self, module: str, name: str) -> Any:
        # This file is two modules: a worker knows the caller's by another name.
        if name in ("_make", "_fill") and module in _NAMES:
            return globals()[name]
        return super().find_class(module, name)


_NAMES = ("carrel.client.executor.pickling", "carrel_worker.pickling")


def load_parts(parts: list[Any]) -> Any:
    """Return the value whose parts are in a list, as `dump` gives them."""
    return _Unpickler(parts[1:]).load()


def size_of(parts: list[Any]) -> int:
    """Return how many bytes the parts have."""
    return sum(len(part) for part in parts)
