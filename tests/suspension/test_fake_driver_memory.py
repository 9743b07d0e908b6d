"""Device memory of the fake driver that is mapped at addresses (VMM), and host memory that is registered with it."""

from __future__ import annotations

from pathlib import Path

from driver_programs import VMM, run
from suspension_rig import MIB, fake_driver

VALUE = "CUDA_ERROR_INVALID_VALUE"
MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def test_mistakes_with_addresses_and_handles_are_refused(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    program = """
at, here = room(4), physical(2)
said = {
  "odd sizes": [call("cuMemCreate", 4096, properties(), 0), call("cuMemAddressReserve", 4096, 0, 0, 0)],
  "no such device": call("cuMemCreate", UNIT, properties(1), 0),
  "nothing reserved": map_(at + 64 * UNIT, here),
  "larger than the memory": map_(at, here, 3),
  "an offset": map_(at, here, 1, UNIT),
  "an odd address": map_(at + 4096, here),
  "the first time": map_(at, here, 2),
  "twice": map_(at + UNIT, here, 1),
  "before access": [call("cuMemcpyHtoD", at, b"x", 1), read(at, 1)],
  "access to a part": allow(at, 1),
  "access to read": [allow(at, 2, 1), read(at, 1), call("cuMemcpyHtoD", at, b"x", 1)],
  "a part of it": unmap(at, 1),
  "addresses in use": call("cuMemAddressFree", at, 4 * UNIT),
  "no such handle": call("cuMemRelease", 4711),
}
said["at last"] = [unmap(at, 2), unmap(at, 2), call("cuMemAddressFree", at, 4 * UNIT), call("cuMemAddressFree", at, 4 * UNIT)]
said["released"] = [call("cuMemRelease", here), call("cuMemRelease", here), free()]
say(said)
"""
    assert run(driver, VMM + program) == [
        {
            "odd sizes": [VALUE, VALUE],
            "no such device": "CUDA_ERROR_INVALID_DEVICE",
            "nothing reserved": VALUE,
            "larger than the memory": VALUE,
            "an offset": VALUE,
            "an odd address": VALUE,
            "the first time": None,
            "twice": VALUE,
            "before access": [VALUE, VALUE],
            "access to a part": VALUE,
            "access to read": [None, "00", VALUE],
            "a part of it": VALUE,
            "addresses in use": VALUE,
            "no such handle": VALUE,
            "at last": [None, VALUE, None, VALUE],
            "released": [None, VALUE, 28],
        }
    ]


def test_physical_memory_lives_as_long_as_a_handle_or_a_mapping(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    program = """
at, here = room(20), physical(20)
said = [free(), physical(20), map_(at, here, 20), call("cuMemRelease", here), free(), map_(at, here, 20)]
again = call("cuMemRetainAllocationHandle", at + UNIT)
told = call("cuMemGetAllocationPropertiesFromHandle", again)
said += [int(again) == int(here), told.location.id, unmap(at, 20), free(), call("cuMemRelease", again), free()]
shared = physical(1, exportable=1)
said += [int(call("cuMemGetAllocationPropertiesFromHandle", shared).requestedHandleTypes)]
say(*said)
"""
    assert run(driver, VMM + program) == [8, MEMORY, None, None, 8, VALUE, True, 0, None, 8, None, 28, 1]


def test_host_memory_is_registered_once_and_has_one_address(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
import mmap
memory = mmap.mmap(-1, 1 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
device = call("cuMemAlloc", 4096)
register = lambda at, size: call("cuMemHostRegister", at, size, 1)
said = [register(address, 0), register(64, 4096), register(address, 1 << 20), register(address + 4096, 4096)]
said += [int(call("cuMemHostGetDevicePointer", address + 8, 0)) - address, call("cuMemHostGetFlags", address)]
memory[:6] = b"carrel"
said += [call("cuMemcpyHtoD", device, address, 6), call("cuMemcpyDtoD", address + 100, device, 6), memory[100:106].decode()]
said += [call("cuMemHostUnregister", address + 4096), call("cuMemHostUnregister", address), call("cuMemHostUnregister", address)]
said += [call("cuMemHostGetDevicePointer", address, 0), call("cuMemFreeHost", address)]
own = call("cuMemHostAlloc", 4096, 0)
said += [call("cuMemHostUnregister", own), call("cuMemFreeHost", own)]
say(*said)
"""
    already, unknown = "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
    assert run(driver, VMM + program) == [
        *(VALUE, VALUE, None, already),
        *(8, 1),
        *(None, None, "carrel"),
        *(unknown, None, unknown),
        *(VALUE, VALUE),
        *(unknown, None),
    ]
