"""A program with GPU state, on whatever libcuda.so.1 it finds. Orders come in as lines of JSON, answers go out; each has its id.

An order with "thread" is carried out in a thread of its own, so that others can follow while it waits.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

MIB = 1024**2


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Property(ctypes.Structure):
    _fields_ = [("type", c_int), ("shareable", c_int), ("location", Location), ("meta", c_void_p), ("flags", c_char * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


class Cuda:
    """The driver's functions, by the way that programs of today find them or by their exported names."""

    def __init__(self, *, ask: bool, hold: bool) -> None:
        self._library = (ctypes.PyDLL if hold else ctypes.CDLL)("libcuda.so.1")
        self._ask = ask
        self._hold = hold
        self._found: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = self._asked(name) if self._ask else getattr(self._library, name)
        return self._found[name]

    def _asked(self, name: str) -> Any:
        found, state = c_void_p(), c_int()
        base = name.removesuffix("_v2").encode()
        assert self._library.cuGetProcAddress_v2(base, byref(found), 13000, c_uint64(0), byref(state)) == 0, name
        kind = ctypes.PYFUNCTYPE if self._hold else ctypes.CFUNCTYPE
        return _Untyped(kind, found.value)


class _Untyped:
    """As ctypes calls a function of a library: the arguments' own types."""

    def __init__(self, kind: Any, where: int | None) -> None:
        self._kind, self._where = kind, where

    def __call__(self, *arguments: Any) -> int:
        made = [
            c_int(one) if isinstance(one, int) else one if isinstance(one, ctypes._SimpleCData) else ctypes.cast(one, c_void_p)
            for one in arguments
        ]
        return self._kind(c_int, *[type(one) for one in made])(self._where)(*made)


def pattern(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Worker:
    def __init__(self, options: dict[str, Any]) -> None:
        self.cuda = Cuda(ask=options.get("ask", False), hold=options.get("hold", False))
        self.contexts: dict[int, c_void_p] = {}
        self.threads: list[Any] = []

    # -- orders

    def init(self) -> dict[str, Any]:
        return {"result": self.cuda.cuInit(0), "visible": _getenv("CUDA_VISIBLE_DEVICES")}

    def context(self, device: int = 0) -> dict[str, Any]:
        made = c_void_p()
        result = self.cuda.cuDevicePrimaryCtxRetain(byref(made), device)
        if result == 0:
            self.contexts[device] = made
            self.cuda.cuCtxSetCurrent(made)
        return {"result": result}

    def alloc(self, size: int, seed: int = -1, device: int = 0) -> dict[str, Any]:
        self.enter(device)
        at = c_uint64()
        result = self.cuda.cuMemAlloc_v2(byref(at), c_size_t(size))
        if result == 0 and seed >= 0:
            result = self.fill(at.value, size, seed, device)["result"]
        return {"result": result, "at": at.value}

    def fill(self, at: int, size: int, seed: int, device: int = 0) -> dict[str, Any]:
        self.enter(device)
        return {"result": self.cuda.cuMemcpyHtoD_v2(c_uint64(at), ctypes.c_char_p(pattern(seed, size)), c_size_t(size))}

    def check(self, at: int, size: int, seed: int, device: int = 0) -> dict[str, Any]:
        self.enter(device)
        found = ctypes.create_string_buffer(size)
        result = self.cuda.cuMemcpyDtoH_v2(found, c_uint64(at), c_size_t(size))
        return {"result": result, "same": found.raw[:size] == pattern(seed, size)}

    def free(self, at: int, device: int = 0) -> dict[str, Any]:
        self.enter(device)
        return {"result": self.cuda.cuMemFree_v2(c_uint64(at))}

    def reserve(self, size: int) -> dict[str, Any]:
        at = c_uint64()
        result = self.cuda.cuMemAddressReserve(byref(at), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
        return {"result": result, "at": at.value}

    def create(self, size: int, device: int = 0, shareable: int = 0) -> dict[str, Any]:
        self.enter(device)
        made = c_uint64()
        about = Property(type=1, shareable=shareable, location=Location(1, device))
        return {"result": self.cuda.cuMemCreate(byref(made), c_size_t(size), byref(about), c_uint64(0)), "handle": made.value}

    def map(self, at: int, size: int, handle: int, device: int = 0, access: bool = True) -> dict[str, Any]:
        result = self.cuda.cuMemMap(c_uint64(at), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))
        if result == 0 and access:
            result = self.access(at, size, device)["result"]
        return {"result": result}

    def access(self, at: int, size: int, device: int = 0, flags: int = 3) -> dict[str, Any]:
        access = Access(Location(1, device), flags)
        return {"result": self.cuda.cuMemSetAccess(c_uint64(at), c_size_t(size), byref(access), c_size_t(1))}

    def allowed(self, at: int, device: int) -> dict[str, Any]:
        flags, where = c_uint64(), Location(1, device)
        return {"result": self.cuda.cuMemGetAccess(byref(flags), byref(where), c_uint64(at)), "flags": flags.value}

    def peer(self, device: int, other: int) -> dict[str, Any]:
        self.enter(device)
        return {"result": self.cuda.cuCtxEnablePeerAccess(self.contexts[other], 0)}

    def unmap(self, at: int, size: int) -> dict[str, Any]:
        return {"result": self.cuda.cuMemUnmap(c_uint64(at), c_size_t(size))}

    def release(self, handle: int) -> dict[str, Any]:
        return {"result": self.cuda.cuMemRelease(c_uint64(handle))}

    def retain(self, at: int) -> dict[str, Any]:
        found = c_uint64()
        return {"result": self.cuda.cuMemRetainAllocationHandle(byref(found), c_void_p(at)), "handle": found.value}

    def export(self, handle: int) -> dict[str, Any]:
        file = c_int(-1)
        return {"result": self.cuda.cuMemExportToShareableHandle(byref(file), c_uint64(handle), 1, c_uint64(0))}

    def range(self, at: int) -> dict[str, Any]:
        base, size = c_uint64(), c_size_t()
        result = self.cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(at))
        return {"result": result, "base": base.value, "size": size.value}

    def managed(self, size: int) -> dict[str, Any]:
        at = c_uint64()
        return {"result": self.cuda.cuMemAllocManaged(byref(at), c_size_t(size), 1), "at": at.value}

    def share(self, at: int) -> dict[str, Any]:
        return {"result": self.cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), c_uint64(at))}

    def call(self, name: str, arguments: list[int]) -> dict[str, Any]:
        return {"result": getattr(self.cuda, name)(*[c_uint64(one) for one in arguments])}

    def stream(self) -> dict[str, Any]:
        made = c_void_p()
        return {"result": self.cuda.cuStreamCreate(byref(made), 1), "stream": made.value}

    def end_capture(self, stream: int) -> dict[str, Any]:
        graph = c_void_p()
        return {"result": self.cuda.cuStreamEndCapture(c_void_p(stream), byref(graph))}

    def where(self, name: str, flags: int = 0) -> dict[str, Any]:
        """The function that cuGetProcAddress names, and the file that it is in."""
        found = c_void_p()
        result = self.cuda._library.cuGetProcAddress_v2(name.encode(), byref(found), 13000, c_uint64(flags), None)
        about = (c_void_p * 4)()
        assert ctypes.CDLL(None).dladdr(found, about)
        return {"result": result, "at": found.value, "file": ctypes.string_at(about[0]).decode()}

    def reset(self, device: int = 0) -> dict[str, Any]:
        return {"result": self.cuda.cuDevicePrimaryCtxRelease_v2(device)}

    def memory(self, device: int = -1) -> dict[str, Any]:
        """Of a device; without one, of that of the current context."""
        self.enter(device)
        free, total = c_size_t(), c_size_t()
        return {"result": self.cuda.cuMemGetInfo_v2(byref(free), byref(total)), "free": free.value, "total": total.value}

    def device(self, number: int = 0) -> dict[str, Any]:
        """The UUID of a device that it sees."""
        raw = ctypes.create_string_buffer(16)
        result, text = self.cuda.cuDeviceGetUuid_v2(raw, number), raw.raw.hex()
        return {"result": result, "uuid": f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"}

    def steps(self, at: int, size: int, seed: int, times: int, device: int = 0) -> dict[str, Any]:
        """Checks and writes the memory again and again, as a training does."""
        for step in range(times):
            if not self.check(at, size, seed + step, device)["same"]:
                return {"result": -1, "step": step}
            self.fill(at, size, seed + step + 1, device)
        return {"result": 0}

    def idle(self) -> dict[str, Any]:
        ctypes.CDLL(None).carrel_residency_idle()
        return {}

    def busy(self, running: int) -> dict[str, Any]:
        ctypes.CDLL(None).carrel_residency_busy(running)
        return {}

    def status(self) -> dict[str, Any]:
        text = ctypes.create_string_buffer(4096)
        ctypes.CDLL(None).carrel_residency_status(text, c_size_t(4096))
        return dict(json.loads(text.value))

    def fork(self, cuda: bool) -> dict[str, Any]:
        """A child that ends with 0 if all went well; with CUDA or without."""
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if not cuda else self.init()["result"] or self.context()["result"] or self.alloc(4 * MIB, 1)["result"]
            finally:
                os._exit(code)
        return {"child": child}

    def wait(self, child: int) -> dict[str, Any]:
        return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}

    def spawn(self, words: list[str]) -> dict[str, Any]:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

    # -- the rest

    def enter(self, device: int) -> None:
        if device in self.contexts:
            self.cuda.cuCtxSetCurrent(self.contexts[device])

    def carry_out(self, order: dict[str, Any]) -> None:
        number = order.pop("order")
        try:
            answer = getattr(self, order.pop("do"))(**order)
        except KeyboardInterrupt:
            answer = {"interrupted": True}
        except Exception as error:  # noqa: BLE001 - the test wants to see it
            answer = {"error": f"{type(error).__name__}: {error}"}
        say({"order": number, **answer})


def _getenv(name: str) -> str | None:
    found = ctypes.CDLL(None)
    found.getenv.restype = ctypes.c_char_p
    value = found.getenv(name.encode())
    return None if value is None else value.decode()


_saying = threading.Lock()


def say(answer: dict[str, Any]) -> None:
    with _saying:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = Worker(json.loads(sys.argv[1]))
    say({"ready": os.getpid()})
    while True:
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            continue
        if not line:
            break
        order = json.loads(line)
        if order.pop("thread", False):
            threading.Thread(target=worker.carry_out, args=(order,), daemon=True).start()
        else:
            worker.carry_out(order)
    os._exit(0)


if __name__ == "__main__":
    main()
