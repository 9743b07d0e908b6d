"""Programs find the fake driver's calls as they find the real one's: by both forms of cuGetProcAddress, and by name."""

from __future__ import annotations

from pathlib import Path

from driver_programs import run
from suspension_rig import fake_driver

LOOKUP = """
import ctypes
lib = ctypes.CDLL("libcuda.so.1")
at = lambda name: ctypes.cast(getattr(lib, name), ctypes.c_void_p).value
def v2(name, version=13000, flags=0, function=lib.cuGetProcAddress_v2):
    found, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = function(name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags), ctypes.byref(status))
    return found.value if result == 0 else [result, status.value]
def v1(name, version=11040, flags=0):
    found = ctypes.c_void_p()
    result = lib.cuGetProcAddress(name.encode(), ctypes.byref(found), version, ctypes.c_uint64(flags))
    return found.value if result == 0 else result
"""


def test_names_without_a_version_are_found_by_both_forms(tmp_path: Path) -> None:
    program = """
pairs = [("cuMemAlloc", "cuMemAlloc_v2"), ("cuMemMap", "cuMemMap"), ("cuGraphInstantiate", "cuGraphInstantiateWithFlags")]
own = [("cuLaunchKernel", "cuLaunchKernel_ptsz"), ("cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2_ptsz")]
own += [("cuMemcpyHtoD", "cuMemcpyHtoD_v2_ptds"), ("cuMemAlloc", "cuMemAlloc_v2")]
itself = "cuGetProcAddress"
say([v(name) == at(real) for v in (v1, v2) for name, real in pairs], [v1("cuMemAlloc_v2"), v2("cuNothing")],
    [v2(itself) == at(itself + "_v2"), v2(itself, 11030) == at(itself), v1(itself) == at(itself)],
    [v2(name, flags=2) == at(real) for name, real in own],
    [at("cuMemAlloc") == at("cuMemAlloc_v2"), at("cuStreamDestroy") == at("cuStreamDestroy_v2")])
"""
    assert run(fake_driver(tmp_path / "driver"), LOOKUP + program) == [
        [True] * 6,
        [500, [500, 1]],
        [True] * 3,
        [True] * 4,
        [True] * 2,
    ]


def test_the_null_stream_of_a_thread_is_its_own(tmp_path: Path) -> None:
    program = """
context()
import threading
go = threading.Event()
waiter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: go.wait() and None)
other = ctypes.c_void_p()
lib.cuStreamCreate(ctypes.byref(other), 1)
own, legacy = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(v2("cuStreamQuery", flags=2)), lib.cuStreamQuery
lib.cuLaunchHostFunc_ptsz(None, waiter, None)
from_here = [own(None), own(ctypes.c_void_p(2)), own(other)]
def elsewhere():
    call("cuCtxSetCurrent", current)
    from_there.append(own(None))
current, from_there = call("cuCtxGetCurrent"), []
thread = threading.Thread(target=elsewhere)
thread.start(), thread.join()
go.set()
say(from_here, from_there, lib.cuCtxSynchronize(), own(None))
"""
    assert run(fake_driver(tmp_path / "driver"), LOOKUP + program) == [[600, 600, 0], [0], 0, 0]
