"""The driver's own view of the GPUs: the one place that imports pynvml.

NVML (libnvidia-ml.so.1) comes with the driver. A machine without it has no GPUs; that is a fact, not an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from carrel.core.domain.node import Device, short_type


@contextmanager
def nvml() -> Iterator[Any]:
    """Yield the initialised pynvml module, or None where there is no driver (or no pynvml)."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def list_gpus() -> tuple[Device, ...]:
    """Return every GPU that can run work now, in the driver's order; a GPU in MIG mode appears as its slices."""
    with nvml() as lib:
        if lib is None:
            return ()
        found: list[Device] = []
        for position in range(lib.nvmlDeviceGetCount()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(position)
                for part in _parts(lib, handle):
                    found.append(_device(lib, part, index=len(found)))
            except lib.NVMLError:  # a GPU that fell off the bus cannot be named; the others can still work
                continue
        return tuple(found)


def _parts(lib: Any, handle: Any) -> list[Any]:
    """The GPU itself, or its slices: in MIG mode programs can use nothing else, so there may be none."""
    try:
        mode, _pending = lib.nvmlDeviceGetMigMode(handle)
    except lib.NVMLError:  # not supported before Ampere
        return [handle]
    if mode != lib.NVML_DEVICE_MIG_ENABLE:
        return [handle]
    slices = []
    for number in range(lib.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            slices.append(lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
        except lib.NVMLError:  # no slice with this number
            continue
    return slices


def _device(lib: Any, handle: Any, index: int) -> Device:
    name = _text(lib.nvmlDeviceGetName(handle))
    memory = int(lib.nvmlDeviceGetMemoryInfo(handle).total)
    return Device(uuid=_text(lib.nvmlDeviceGetUUID(handle)), index=index, type=short_type(name), name=name, memory=memory)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
