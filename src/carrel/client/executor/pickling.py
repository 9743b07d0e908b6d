"""Values on their way: large arrays lie beside the pickle, as they are in memory (PEP 574). It travels with the workers."""

from __future__ import annotations

import pickle
import struct
from typing import Any


def dump(value: Any) -> list[Any]:
    """Return the parts of a pickled value, to be sent one after the other: sizes, the pickle, its buffers."""
    import cloudpickle  # the caller's own version lies beside a worker

    buffers: list[pickle.PickleBuffer] = []
    text = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(text), *(len(view) for view in raw)]
    return [struct.pack(f">I{len(sizes)}Q", len(sizes), *sizes), text, *raw]


def load(data: bytearray) -> Any:
    """Return the value whose parts are in `data`. Its arrays stand on `data` itself, and nothing is copied."""
    view = memoryview(data)
    (count,) = struct.unpack_from(">I", view)
    sizes = struct.unpack_from(f">{count}Q", view, 4)
    place = 4 + 8 * count
    parts = []
    for size in sizes:
        parts.append(view[place : place + size])
        place += size
    return pickle.loads(parts[0], buffers=parts[1:])


def size_of(parts: list[Any]) -> int:
    """Return how many bytes the parts have."""
    return sum(len(part) for part in parts)
