"""Processes that a call starts (`multiprocessing`) get functions and classes of the caller's `__main__` by value, as calls do.

By reference they are not found: `__main__` is another program here. It is enough to import this module.
"""

from __future__ import annotations

import sys
import types
from multiprocessing.reduction import ForkingPickler
from operator import attrgetter
from typing import Any


def load(data: bytes) -> Any:
    """Return what `_by_value` has pickled. The process has this module from then on, and can send such values itself."""
    import cloudpickle

    return cloudpickle.loads(data)


def _by_value(_pickler: Any, value: Any) -> Any:
    if not isinstance(value, (type, types.FunctionType)) or value.__module__ != "__main__":
        return NotImplemented
    try:
        if attrgetter(value.__qualname__)(sys.modules["__main__"]) is value:
            return NotImplemented  # that of a remote cell, which is as a notebook is
    except AttributeError:
        pass
    import cloudpickle

    return load, (cloudpickle.dumps(value),)


ForkingPickler.reducer_override = _by_value  # type: ignore[attr-defined] # pickle.Pickler's own hook
