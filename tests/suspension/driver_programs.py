"""Short programs on the fake driver, written with the real bindings."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from carrel.testing.waiting import PATIENCE
from support.fake_driver import FakeDriver

#: Begins every program below; `call` returns the value, or the name of the error.
PRELUDE = """
import json, os, sys
from cuda.bindings import driver as d
def call(name, *arguments):
    result, *values = getattr(d, name)(*arguments)
    return result.name if int(result) else values[0] if values else None
def context(ordinal=0):
    call("cuInit", 0)
    call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", ordinal)))
def say(*values): print(json.dumps(values))
"""
#: `physical` makes memory, `room` addresses; both in units of 2 MiB, the granularity.
VMM = """
import ctypes
UNIT = 2 << 20
def properties(device=0, exportable=0):
    p = d.CUmemAllocationProp()
    p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    p.location.id = device
    p.requestedHandleTypes = d.CUmemAllocationHandleType(exportable)
    return p
def access(device=0, flags=3):
    a = d.CUmemAccessDesc()
    a.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    a.location.id = device
    a.flags = d.CUmemAccess_flags(flags)
    return a
def room(units): return int(call("cuMemAddressReserve", units * UNIT, 0, 0, 0))
def physical(units=1, **more): return call("cuMemCreate", units * UNIT, properties(**more), 0)
def map_(at, handle, units=1, offset=0): return call("cuMemMap", at, units * UNIT, offset, handle, 0)
def allow(at, units=1, flags=3, device=0): return call("cuMemSetAccess", at, units * UNIT, [access(device, flags)], 1)
def unmap(at, units=1): return call("cuMemUnmap", at, units * UNIT)
def read(at, size):
    back = ctypes.create_string_buffer(size)
    result = call("cuMemcpyDtoH", ctypes.addressof(back), at, size)
    return result or back.raw.hex()
def free(): return d.cuMemGetInfo()[1] // UNIT
context()
"""


def run(driver: FakeDriver, program: str, **variables: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        env=driver.environment() | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))
