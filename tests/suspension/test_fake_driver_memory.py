"""Device memory of the fake driver that is mapped at addresses (VMM), and host memory that is registered with it."""

from __future__ import annotations

from pathlib import Path

from driver_programs import VMM, run
from suspension_rig import MIB, fake_driver

VALUE = "CUDA_ERROR_INVALID_VALUE"
MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def test_mapped_memory_is_written_and_read_across_allocations_and_keeps_its_place(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    program = """
at, here, there = room(4), physical(), physical()
said = [int(call("cuMemGetAllocationGranularity", properties(), d.CUmemAllocationGranularity_flags(0))) // UNIT, at % UNIT]
said += [map_(at, here), map_(at + UNIT, there), allow(at, 2), int(call("cuMemGetAccess", access().location, at + 5))]
said += [call("cuMemsetD8", at, 1, 2 * UNIT), call("cuMemcpyHtoD", at + UNIT - 3, b"carrel", 6), read(at + UNIT - 4, 8)]
said += [unmap(at, 2), read(at, 4), map_(at + 2 * UNIT, there), allow(at + 2 * UNIT), read(at + 2 * UNIT, 4)]
say(*said)
"""
    written = b"\1carrel\1"
    assert run(driver, VMM + program) == [
        *(1, 0, None, None, None, 3),
        *(None, None, written.hex()),
        *(None, VALUE, None, None, (b"rel\1").hex()),
    ]


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


def test_a_wish_for_an_address_is_granted_where_nothing_is(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
at = room(2)
wish = lambda where: int(call("cuMemAddressReserve", UNIT, 0, where, 0)) == where
say(wish(at), wish(at + 64 * UNIT), wish(at + 64 * UNIT), call("cuMemAddressFree", at, 2 * UNIT), wish(at),
    int(call("cuMemAddressReserve", UNIT, 64 * UNIT, 0, 0)) % (64 * UNIT))
"""
    assert run(driver, VMM + program) == [False, True, False, None, True, 0]


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


def test_a_checkpoint_takes_mapped_memory_along(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", gpus=2, memory=64 * MIB, context=8 * MIB)
    program = """
at, here = room(4), physical(4)
map_(at, here, 4), allow(at, 4), call("cuMemsetD8", at, 9, 4 * UNIT)
if os.fork() == 0:
    call("cuInit", 0)
    parent = os.getppid()
    for step in "Lock Checkpoint Restore Unlock".split():
        if (result := call("cuCheckpointProcess" + step, parent, None)) is not None: os._exit(1)
    os._exit(0)
say(os.wait()[1], read(at + 4 * UNIT - 2, 2), unmap(at, 4), free(), call("cuMemRelease", here), free())
"""
    assert run(driver, VMM + program) == [0, "0909", None, 24, None, 28]


def test_a_copy_fails_or_stops_in_its_middle(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    driver.inject("cuMemcpyHtoD", "cut", 4)
    program = """
at = call("cuMemAlloc", 4096)
say(call("cuMemcpyHtoD", at, b"carrel", 6), read(at, 6), call("cuMemcpyHtoD", at, b"carrel", 6), read(at, 6))
"""
    assert run(driver, VMM + program) == ["CUDA_ERROR_UNKNOWN", b"carr\0\0".hex(), None, b"carrel".hex()]
