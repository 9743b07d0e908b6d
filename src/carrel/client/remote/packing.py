"""Variables on their way to a remote cell. What cannot travel is named, with its size, and with the way out."""

from __future__ import annotations

import functools
import importlib
import io
import operator
import pickle
import types
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from carrel.client.executor import pickling
from carrel.client.executor.pickling import Faithful, load_parts, size_of
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_size

__all__ = ["There", "anchored", "load_parts", "pack"]


#: Functions of IPython that the worker has its own of.
_OURS = {("IPython.core.display_functions", name) for name in ("display", "clear_output")}


class There:
    """Stands for a function of the worker's own package; a worker sees that function in its place."""

    def __init__(self, module: str, name: str, label: str) -> None:
        self._module, self._name = module, name
        #: By these the lab knows the call.
        self.__module__, self.__qualname__ = "__main__", label

    def __call__(self, *_arguments: Any) -> Any:
        """It is called there."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (_Module("carrel_worker." + self._module), self._name)


class _Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self._name,)


class _Packer(Faithful, cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
    def reducer_override(self, obj: Any) -> Any:
        """A notebook's `display` is the worker's own there."""
        if isinstance(obj, types.FunctionType) and (obj.__module__, obj.__name__) in _OURS:
            return getattr, (_Module("carrel_worker.display"), obj.__name__)
        if (type(obj).__module__, type(obj).__name__) == ("IPython.core.display_functions", "DisplayHandle"):
            return operator.methodcaller("Handle", obj.display_id), (_Module("carrel_worker.display"),)
        return super().reducer_override(obj)


def _dump(value: Any) -> tuple[list[Any], list[pickle.PickleBuffer]]:
    """Return the parts of a pickled value, and the buffers of those that are arrays."""
    file, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Packer(file, protocol=5, buffer_callback=buffers.append).dump(value)
    return pickling.parts(file.getvalue(), buffers), buffers


def anchored(space: dict[str, Any], variables: Mapping[str, Any]) -> Any:
    """What a remote cell gets: its variables, and a function that stands on the notebook's, so that all have the same."""
    anchor = types.FunctionType((lambda: None).__code__, space, "cell")
    anchor.__module__ = "__main__"
    return anchor, dict(variables)


def pack(value: Any, variables: Mapping[str, Any], limit: int, *, what: str = "variables that the cell needs") -> list[Any]:
    """Return the pickled parts of `value`. Raises `Invalid` that names those of `variables` that are in the way."""
    try:
        parts, buffers = _dump(value)
    except Exception as error:  # noqa: BLE001 - whatever a value does when it is pickled
        found = {name: why for name, one in variables.items() if (why := _why_not(one)) is not None}
        reasons = "; ".join(f"{name} ({why})" for name, why in found.items()) or f"{type(error).__name__}: {error}"
        raise Invalid(
            f"Of the {what} this cannot be pickled: {reasons}.",
            remedy="Make it inside of the remote cell or function: open files, locks, connections and generators do not travel.",
        ) from None
    size = size_of(parts)
    if size > limit:
        sizes = sorted(((size_of(_dump(one)[0]), name) for name, one in variables.items()), reverse=True)
        largest = ", ".join(f"{name} {format_size(bytes_)}" for bytes_, name in sizes[:5])
        raise Invalid(
            f"The {what} have {format_size(size)}, and the limit is {format_size(limit)}: {largest}.",
            remedy="Load large data inside of the remote cell, from a file or an input of the lab; or raise the limit: limit=8G.",
        )
    # Not views of views: those crash Python 3.11 when a cycle with them is collected.
    return [*map(pickle.PickleBuffer, parts[:2]), *buffers]


def _why_not(value: Any) -> str | None:
    try:
        _dump(value)
    except Exception as error:  # noqa: BLE001 - as above
        return f"{type(value).__name__}: {error}"
    return None


def named(function: Callable[..., Any]) -> str:
    """The name of a function, for people."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__name__)
