"""Work for the fake driver's device: streams, events, kernels, graphs, and what happens to work whose memory is not there."""

from __future__ import annotations

from pathlib import Path

from driver_programs import VMM, run
from suspension_rig import fake_driver

ILLEGAL = "CUDA_ERROR_ILLEGAL_ADDRESS"
NOT_READY = "CUDA_ERROR_NOT_READY"

#: `launch` gives a kernel to a stream; `hold` lets a stream wait for `go`; `words` reads 32-bit words.
WORK = (
    VMM
    + """
import array
module = call("cuModuleLoadData", b"any image")
kernels = {name: call("cuModuleGetFunction", module, name.encode()) for name in ("add", "mix", "spin")}
KINDS = {"add": (8, 8, 4), "mix": (8, 8, 8, 4), "spin": (4,)}
C = {8: ctypes.c_uint64, 4: ctypes.c_uint32}
def launch(name, *arguments, stream=0, call=call):
    kinds = tuple(C[size] for size in KINDS[name])
    return call("cuLaunchKernel", kernels[name], 1, 1, 1, 1, 1, 1, 0, stream, (tuple(map(int, arguments)), kinds), 0)
def words(at, count):
    back = (ctypes.c_uint32 * count)()
    result = call("cuMemcpyDtoH", ctypes.addressof(back), at, 4 * count)
    return result or list(back)
def stream(flags=1): return call("cuStreamCreate", flags)
def memory(count, value=0):
    at = call("cuMemAlloc", 4 * count)
    call("cuMemsetD32", at, value, count)
    return at
import threading
go = threading.Event()
waiter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: go.wait() and None)
def hold(stream): return call("cuLaunchHostFunc", stream, ctypes.cast(waiter, ctypes.c_void_p).value, 0)
"""
)


def test_work_is_done_in_order_and_launches_return_at_once(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
one, two = stream(), stream()
a, b = memory(4, 1), memory(4, 2)
said = [hold(one), launch("add", a, 4, 5, stream=one), call("cuStreamQuery", one), call("cuStreamQuery", two)]
event = call("cuEventCreate", 0)
said += [call("cuEventRecord", event, one), call("cuEventQuery", event), call("cuStreamWaitEvent", two, event, 0)]
said += [call("cuMemcpyDtoDAsync", b, a, 16, two), go.set(), call("cuStreamSynchronize", two), call("cuEventQuery", event)]
said += [words(b, 4), call("cuMemsetD8Async", b, 1, 4, one), call("cuMemsetD32Async", int(b) + 4, 7, 2, one)]
said += [call("cuCtxSynchronize"), words(b, 4)]
say(*said)
"""
    assert run(driver, WORK + program) == [
        *(None, None, NOT_READY, None),
        *(None, NOT_READY, None),
        *(None, None, None, None, [6] * 4),
        *(None, None, None, [0x01010101, 7, 7, 6]),
    ]


def test_steps_of_mix_tell_what_was_left_out_or_done_in_another_order(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
data = memory(64, 3)
def trained(*steps):
    at = memory(64, 1)
    for step in steps: launch("mix", at, data, 64, step)
    return words(at, 64)
all = trained(1, 2, 3)
say(all == trained(1, 2, 3), all == trained(1, 3, 2), all == trained(1, 3), all == trained(1, 2, 2, 3), len(set(all)))
"""
    assert run(driver, WORK + program) == [True, False, False, False, 64]


def test_work_on_memory_that_has_gone_ends_the_context(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
at, here, own = room(1), physical(), stream()
map_(at, here), allow(at)
said = [hold(own), launch("add", at, 4, 1, stream=own), unmap(at)]
go.set()
said += [call("cuCtxSynchronize"), call("cuMemAlloc", 64), call("cuStreamQuery", own), launch("spin", 1, stream=own)]
say(*said)
"""
    assert run(driver, WORK + program) == [None, None, None, ILLEGAL, ILLEGAL, ILLEGAL, ILLEGAL]
    (broken,) = driver.broken()
    assert broken[1:] == (700, "cuLaunchKernel")
    assert run(driver, WORK + "say(launch('add', room(1), 4, 1), call('cuCtxSynchronize'))") == [None, ILLEGAL]
    copy = "say(call('cuMemcpyDtoHAsync', memory(1), room(1), 4, 0), call('cuCtxSynchronize'))"
    assert run(driver, WORK + copy) == ["CUDA_ERROR_INVALID_VALUE", None]


def test_waiting_for_everything_spoils_a_capture(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
one, blocking, at = stream(), stream(0), memory(1)
mode = d.CUstreamCaptureMode
modes = [mode.CU_STREAM_CAPTURE_MODE_GLOBAL, mode.CU_STREAM_CAPTURE_MODE_RELAXED]
def spoilt_by(act, which=one, mode=modes[0]):
    call("cuStreamBeginCapture", which, mode)
    results = [act(), launch("add", at, 1, 1, stream=which)]
    ended = d.cuStreamEndCapture(which)
    return [result and str(result).removeprefix("CUDA_ERROR_STREAM_CAPTURE_") for result in [*results, ended[0].name]]
say(spoilt_by(lambda: call("cuCtxSynchronize")), spoilt_by(lambda: call("cuStreamSynchronize", one)),
    spoilt_by(lambda: call("cuMemAlloc", 64)), spoilt_by(lambda: launch("add", at, 1, 1)),
    spoilt_by(lambda: launch("add", at, 1, 1), blocking), spoilt_by(lambda: call("cuMemFree", memory(1)), one, modes[1]),
    call("cuCtxSynchronize"), words(at, 1))
"""
    void = ["UNSUPPORTED", "INVALIDATED", "INVALIDATED"]
    assert run(driver, WORK + program) == [
        *(void, void, void),
        [None, None, "CUDA_SUCCESS"],
        ["IMPLICIT", "INVALIDATED", "INVALIDATED"],
        [None, None, "CUDA_SUCCESS"],
        *(None, [1]),
    ]
