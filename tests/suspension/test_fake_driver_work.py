"""Work for the fake driver's device: streams, events, kernels, graphs, and what happens to work whose memory is not there."""

from __future__ import annotations

from pathlib import Path

from driver_programs import PRELUDE, VMM, run
from suspension_rig import MIB, fake_driver

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


def test_the_legacy_stream_waits_for_blocking_streams_and_they_for_it(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
blocking, other = stream(0), stream(0)
a, b, c = memory(1, 1), memory(1), memory(1)
hold(blocking), launch("add", a, 1, 1, stream=blocking)
call("cuMemcpyDtoDAsync", b, a, 4, 0), call("cuMemcpyDtoDAsync", c, b, 4, other)
launch("spin", 1000, stream=blocking), launch("add", a, 1, 1, stream=blocking)
go.set()
say(call("cuStreamSynchronize", other), words(c, 1), words(a, 1))
"""
    assert run(driver, WORK + program) == [None, [2], [3]]


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


def test_host_functions_and_copies_from_pageable_memory(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
own, at, seen = stream(), memory(2), []
note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: seen.append(data))
source = array.array("I", [5, 6])
hold(own)
call("cuMemcpyHtoDAsync", at, source.buffer_info()[0], 8, own)
source[0] = 9
call("cuLaunchHostFunc", own, ctypes.cast(note, ctypes.c_void_p).value, 42)
early = list(seen)
go.set()
back = array.array("I", [0, 0])
call("cuMemcpyDtoHAsync", back.buffer_info()[0], at, 8, own)
say(early, seen, list(back))
"""
    assert run(driver, WORK + program) == [[], [42], [5, 6]]


def test_what_is_captured_is_done_when_the_graph_is_launched(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
one, two, at = stream(), stream(), memory(2, 1)
fork, join = call("cuEventCreate", 0), call("cuEventCreate", 0)
status = lambda which: int(call("cuStreamIsCapturing", which))
mode = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
said = [call("cuStreamBeginCapture", one, mode), status(one), status(two)]
launch("add", at, 2, 1, stream=one), call("cuEventRecord", fork, one), call("cuStreamWaitEvent", two, fork, 0)
said += [status(two)]
launch("add", at, 1, 10, stream=two), call("cuEventRecord", join, two), call("cuStreamWaitEvent", one, join, 0)
graph = call("cuStreamEndCapture", one)
ready = call("cuGraphInstantiate", graph, 0)
said += [status(one), status(two), words(at, 2), call("cuGraphDestroy", graph)]
for _ in range(3): said += [call("cuGraphLaunch", ready, two)]
said += [call("cuStreamSynchronize", two), words(at, 2), call("cuGraphExecDestroy", ready)]
say(*said)
"""
    assert run(driver, WORK + program) == [
        *(None, 1, 0, 1),
        *(0, 0, [1, 1], None),
        *(None, None, None, None, [34, 4], None),
    ]


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


def test_a_lock_waits_for_work_that_was_given(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
at, own = memory(1), stream()
read, write = os.pipe()
if os.fork() == 0:
    call("cuInit", 0)
    os.read(read, 1)
    steps = "Lock Checkpoint Restore Unlock".split()
    os._exit(sum(call("cuCheckpointProcess" + step, os.getppid(), None) is not None for step in steps))
launch("spin", 50000, stream=own), launch("add", at, 1, 4, stream=own)
os.write(write, b"x")
say(os.wait()[1], call("cuStreamQuery", own), words(at, 1))
"""
    assert run(driver, WORK + program) == [0, None, [4]]


def test_memory_of_pools_pitch_and_what_addresses_are(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver", memory=64 * MIB, context=8 * MIB)
    program = """
own = stream()
plain, pooled = memory(4), call("cuMemAllocAsync", 20 * UNIT, own)
at, here = room(1), physical(1, exportable=1)
map_(at, here), allow(at)
attribute = d.CUpointer_attribute
def about(where):
    result = d.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, where)
    return [str(result[0].name).removeprefix("CUDA_"), int(result[1] or 0)]
def many(where):
    wanted = [attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE]
    return [int(value or 0) for value in call("cuPointerGetAttributes", 2, wanted, where)]
said = [about(plain), about(pooled), about(at + 8), about(64), many(at + 8), many(64)]
base, size = d.cuMemGetAddressRange(at + 8)[1:]
said += [[int(base) - at, size], free(), call("cuMemFreeAsync", pooled, own)]
said += [call("cuStreamSynchronize", own), free(), call("cuMemFreeAsync", pooled, own)]
pool = call("cuDeviceGetDefaultMemPool", 0)
said += [call("cuMemPoolTrimTo", pool, 0), d.cuMemAllocPitch(100, 4, 4)[2]]
say(*said)
"""
    assert run(driver, WORK + program) == [
        *(["SUCCESS", 1], ["SUCCESS", 0], ["SUCCESS", 0], ["ERROR_INVALID_VALUE", 0], [2, 2 * MIB], [0, 0]),
        *([0, 2 * MIB], 6, None),
        *(None, 26, "CUDA_ERROR_INVALID_VALUE"),
        *(None, 512),
    ]


IPC = """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
driver = ctypes.CDLL("libcuda.so.1")
driver.cuIpcOpenMemHandle_v2.argtypes = [ctypes.c_void_p, Handle, ctypes.c_uint]
def open_():
    at = ctypes.c_uint64()
    return driver.cuIpcOpenMemHandle_v2(ctypes.byref(at), handle, 1) or at.value
"""


def test_memory_is_shared_between_processes_unless_it_is_mapped(tmp_path: Path) -> None:
    driver = fake_driver(tmp_path / "driver")
    program = """
plain, at, here = memory(2, 7), room(1), physical()
map_(at, here), allow(at)
handle = Handle()
said = [driver.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(at))]
said += [driver.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(int(plain))), open_()]
child = '''
handle = Handle.from_buffer_copy(bytes.fromhex(%r))
at = open_()
launch("add", at, 2, 1), call("cuCtxSynchronize")
say(words(at, 2), call("cuIpcCloseMemHandle", at), call("cuIpcCloseMemHandle", at))
''' % bytes(handle).hex()
import subprocess
told = subprocess.run([sys.executable, "-c", os.environ["PROGRAM"] + child], capture_output=True, text=True)
said += [json.loads(told.stdout or json.dumps(told.stderr)), words(plain, 2)]
say(*said)
"""
    assert run(driver, WORK + IPC + program, PROGRAM=PRELUDE + WORK + IPC) == [
        *(1, 0, 201),
        *([[8, 8], None, "CUDA_ERROR_INVALID_VALUE"], [8, 8]),
    ]
