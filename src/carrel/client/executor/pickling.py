"""Values on their way: large arrays lie beside the pickle, as they are in memory (PEP 574). It travels with the workers."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from typing import Any

_ALIGNED = 64


def dump(value: Any) -> list[Any]:
    """Return the parts of a pickled value, to be sent one after the other: sizes, the pickle, its buffers."""
    import cloudpickle  # the caller's own version lies beside a worker

    buffers: list[pickle.PickleBuffer] = []
    return parts(cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers)


def parts(text: bytes, buffers: list[pickle.PickleBuffer]) -> list[Any]:
    """Return the parts of what was pickled."""
    raw = [buffer.raw() for buffer in buffers]
    if raw:  # what follows the end of a pickle is not read: the first array begins where processors like it
        text += bytes(-(4 + 8 * (1 + len(raw)) + len(text)) % _ALIGNED)
    sizes = [len(text), *(len(view) for view in raw)]
    return [struct.pack(f">I{len(sizes)}Q", len(sizes), *sizes), text, *raw]


def load(data: Any, result_of: Callable[[int], Any] | None = None) -> Any:
    """Return the value whose parts are in `data`. Its arrays stand on `data` itself, and nothing is copied.

    `result_of` gives what a call returned: arguments name the calls whose results they are.
    """
    view = memoryview(data)
    (count,) = struct.unpack_from(">I", view)
    sizes = struct.unpack_from(f">{count}Q", view, 4)
    place = 4 + 8 * count
    found = []
    for size in sizes:
        found.append(view[place : place + size])
        place += size
    if result_of is None:
        return pickle.loads(found[0], buffers=found[1:])
    unpickler = _Unpickler(io.BytesIO(found[0]), buffers=found[1:])
    unpickler.result_of = result_of
    return unpickler.load()


class _Unpickler(pickle.Unpickler):
    result_of: Callable[[int], Any]

    def persistent_load(self, pid: Any) -> Any:
        return self.result_of(pid)


def load_parts(parts: list[Any]) -> Any:
    """Return the value whose parts are in a list, as `dump` gives them."""
    return pickle.loads(parts[1], buffers=parts[2:])


def size_of(parts: list[Any]) -> int:
    """Return how many bytes the parts have."""
    return sum(len(part) for part in parts)
