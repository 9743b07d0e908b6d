"""Values that a pool has, and that any number of its calls take as arguments: they are sent once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from carrel.client.executor.future import FutureInside

#: Bytes from which a value of joblib's tasks is sent once for all of them.
_LARGE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Scattered:
    """Stands for a value among the arguments of a call; `carrel.Executor.scatter` makes it."""

    pool_id: int
    #: Of the pickled value.
    digest: str

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise FutureInside("A scattered value")


def is_large(value: Any) -> bool:
    """True for an array, or bytes, that should not be sent with each task that has it."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray:
        return bool(value.nbytes >= _LARGE and not value.dtype.hasobject)
    return type(value) is bytes and len(value) >= _LARGE
