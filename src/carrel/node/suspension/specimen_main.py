"""A small program with CUDA state whose value is known: what the probe suspends and restores, and the tests too.

`python -m carrel.node.suspension.specimen_main --size BYTES [--device UUID] [--managed BYTES]` says {"ready": …} and then answers
each line on its input with a line. Only "count" and "quit" answer while the process is suspended; the others wait, as CUDA does.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import mmap
import os
import random
import sys
import threading
from typing import Any

#: Bytes of one block of the pattern. Each begins with its number and the count of steps, and goes on with known random bytes.
BLOCK = 1024**2
_HEAD = 16
#: Bytes in which device memory is made and mapped.
UNIT = 2 * BLOCK


class CudaError(Exception):
    """A driver call did not succeed."""


class State:
    """Device memory full of a pattern that changes with every step."""

    def __init__(self, size: int) -> None:
        self.cuda: Any = importlib.import_module("cuda.bindings.driver")
        self.count = 0
        self.running = False
        #: One thread computes or compares at a time.
        self.turn = threading.Lock()
        self._worker: threading.Thread | None = None
        self._noise = random.Random(20261121).randbytes(BLOCK)
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        self._device = device
        self._context = self._call("cuDevicePrimaryCtxRetain", device)
        self.enter()
        self._blocks: list[tuple[int, int]] = []
        self._managed: list[Any] = []
        #: Addresses that are reserved, and host memory that is registered, both of `UNIT` bytes (`reserve`).
        self._room, self._host = 0, mmap.mmap(-1, UNIT)
        self.grow(size)

    def enter(self) -> None:
        """Make the context this thread's."""
        self._call("cuCtxSetCurrent", self._context)

    def grow(self, size: int) -> None:
        """Allocate and fill `size` bytes more."""
        if size <= 0:
            return
        address = int(self._call("cuMemAlloc", size))
        for offset in range(0, size, BLOCK):
            self._blocks.append((address + offset, min(BLOCK, size - offset)))
            self._write(len(self._blocks) - 1, whole=True)

    def manage(self, size: int) -> None:
        """Allocate managed memory, which no driver known to us can checkpoint."""
        flag = self.cuda.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
        self._managed.append(self._call("cuMemAllocManaged", size, int(flag)))

    def reserve(self) -> None:
        """Have what the residency library has while a state is away: addresses without memory, and registered host memory."""
        self._room = int(self._call("cuMemAddressReserve", UNIT, 0, 0, 0))
        self._call("cuMemHostRegister", _address(self._host), UNIT, 0)

    def fill(self) -> bool:
        """Put device memory behind those addresses, and see that it can be used from that host memory."""
        wanted, access = self.cuda.CUmemAllocationProp(), self.cuda.CUmemAccessDesc()
        wanted.type = self.cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        access.flags = self.cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        for location in (wanted.location, access.location):
            location.type, location.id = self.cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
        memory = self._call("cuMemCreate", UNIT, wanted, 0)
        self._call("cuMemMap", self._room, UNIT, 0, memory, 0)
        self._call("cuMemSetAccess", self._room, UNIT, [access], 1)
        for begin in range(0, UNIT, BLOCK):
            self._host[begin : begin + BLOCK] = self._noise
        written = bytes(self._host)
        self._call("cuMemcpyHtoD", self._room, _address(self._host), UNIT)
        self._host[:] = bytes(UNIT)
        self._call("cuMemcpyDtoH", _address(self._host), self._room, UNIT)
        return bytes(self._host) == written

    def step(self) -> None:
        """Check the head of every block and write the next one: wrong state cannot go on unnoticed."""
        for number in range(len(self._blocks)):
            self._compare(number, _HEAD)
        self.count += 1
        for number in range(len(self._blocks)):
            self._write(number, whole=False)
        self._call("cuCtxSynchronize")

    def same(self) -> bool:
        """Compare every byte."""
        try:
            for number, (_, size) in enumerate(self._blocks):
                self._compare(number, size)
        except ValueError:
            return False
        return True

    def run(self, times: int) -> None:
        """Make steps in the background."""
        self.running = True
        self._worker = threading.Thread(target=self._steps, args=(times,), daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """End the steps in the background after the present one."""
        self.running = False
        if self._worker is not None:
            self._worker.join()

    def _steps(self, times: int) -> None:
        self.enter()
        try:
            while self.running and times > 0:
                with self.turn:
                    self.step()
                times -= 1
        finally:
            self.running = False

    def where(self) -> str:
        """Return the uuid of the device on which the driver says the context is."""
        raw = bytes(self._call("cuDeviceGetUuid", self._device).bytes).hex()
        return f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:]}"

    def _expected(self, number: int) -> bytearray:
        block = bytearray(self._noise)
        block[:_HEAD] = number.to_bytes(8, "little") + self.count.to_bytes(8, "little")
        return block

    def _write(self, number: int, *, whole: bool) -> None:
        address, size = self._blocks[number]
        data = self._expected(number)
        self._call("cuMemcpyHtoD", address, _address(data), size if whole else min(size, _HEAD))

    def _compare(self, number: int, size: int) -> None:
        size = min(size, self._blocks[number][1])
        data = bytearray(size)
        self._call("cuMemcpyDtoH", _address(data), self._blocks[number][0], size)
        if data != self._expected(number)[:size]:
            raise ValueError(f"block {number} is not what was written")

    def _call(self, name: str, *arguments: Any) -> Any:
        result, *values = getattr(self.cuda, name)(*arguments)
        if int(result) != 0:
            raise CudaError(f"{name}: {result.name}")
        return values[0] if values else None


def _address(data: bytearray | mmap.mmap) -> int:
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))


def _say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _answer(state: State, order: dict[str, Any]) -> dict[str, object]:
    match order["do"]:
        case "step":
            with state.turn:
                state.step()
        case "run":
            state.run(int(order["times"]))
        case "stop":
            state.stop()
        case "grow":
            state.grow(int(order["size"]))
        case "manage":
            state.manage(int(order["size"]))
        case "check":
            with state.turn:
                return {"same": state.same(), "count": state.count}
        case "reserve":
            state.reserve()
        case "fill":
            return {"same": state.fill()}
        case "where":
            return {"device": state.where()}
    return {"count": state.count, "running": state.running}


def main(words: list[str] | None = None) -> None:
    """Allocate, say so, and do as told until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=64 * BLOCK)
    parser.add_argument("--device", default=None, help="UUID of the device")
    parser.add_argument("--managed", type=int, default=0)
    options = parser.parse_args(words)
    if options.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.device  # before the driver is loaded
    try:
        state = State(options.size)
        if options.managed:
            state.manage(options.managed)
    except Exception as error:  # noqa: BLE001 - the driver's loader raises errors of its own; all of them are reported
        _say(error=str(error) or type(error).__name__)
        return
    _say(ready=os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "quit":
            break
        try:
            _say(**_answer(state, order))
        except (CudaError, ValueError) as error:
            _say(error=str(error))


if __name__ == "__main__":
    main()
