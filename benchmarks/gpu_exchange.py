"""Two states that change places on one GPU: `PYTHONPATH=src python benchmarks/gpu_exchange.py --size 20 --fill 45`.

Two programs each have `--size` GB of state; a third, outside of the broker, has `--fill` GB (0: there is none), so that the GPU
does not hold both. They ask for the GPU by turns: the time is that of the first call, which waits for its lease and for both
moves. All of both states is compared at the end. A real broker and the residency library do it, with a C compiler and no
framework. The broker's lines about the moves follow, with the seconds of each. With `--fake` it runs on the fake driver: that
tests this program; the figures mean nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "residency"))

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from carrel.node.devices.discover import discover
from carrel_residency.build import compile_library
from figure import median
from support.broker_process import BrokerProcess, start_broker
from support.fake_driver import build

GB, MIB = 10**9, 1024**2
_SOURCES = Path(__file__).parents[1] / "residency" / "src"


class State:
    """What the program below has on its GPU: blocks of one number each."""

    def __init__(self, size: int, seed: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._do("cuInit", 0)
        self._do("cuDeviceGet", ctypes.byref(device), 0)
        self._do("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._do("cuCtxSetCurrent", context)
        self.block = min(size, 1024 * MIB) // (8 * MIB) * 8 * MIB
        self.blocks = [self._allocate(seed * 1000 + number) for number in range(size // self.block)]

    def _do(self, name: str, *arguments: object) -> None:
        result = getattr(self._cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: CUresult {result}")

    def _allocate(self, word: int) -> tuple[ctypes.c_uint64, int]:
        at = ctypes.c_uint64()
        self._do("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(self.block))
        self._do("cuMemsetD32_v2", at, ctypes.c_uint(word), ctypes.c_size_t(self.block // 4))
        self._do("cuCtxSynchronize")
        return at, word

    def touch(self) -> str:
        began = time.perf_counter()
        at, word = self.blocks[0]
        self._do("cuMemsetD32_v2", at, ctypes.c_uint(word), ctypes.c_size_t(1))
        self._do("cuCtxSynchronize")
        return f"{time.perf_counter() - began}"

    def check(self) -> str:
        part = 8 * MIB
        host = ctypes.create_string_buffer(part)
        for at, word in self.blocks:
            expected = word.to_bytes(4, sys.byteorder) * (part // 4)
            for offset in range(0, self.block, part):
                self._do("cuMemcpyDtoH_v2", host, ctypes.c_uint64(at.value + offset), ctypes.c_size_t(part))
                if host.raw != expected:
                    return "different"
        return "same"


def program(size: int, seed: int) -> None:
    state = State(size, seed)
    print("ready", flush=True)
    for line in sys.stdin:
        print(state.touch() if line.strip() == "touch" else state.check(), flush=True)


class Program:
    def __init__(self, environment: Mapping[str, str], size: int, seed: int) -> None:
        words = [sys.executable, __file__, "--program", str(size), str(seed)]
        self._process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise SystemExit("a program has ended")
        return line

    def order(self, what: str) -> str:
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)
        return self._hear()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def exchange(broker: BrokerProcess, environment: Mapping[str, str], size: int, fill: int, rounds: int) -> bool:
    jobs = [broker.session(number, owner="a") for number in (1, 2)]
    programs = [Program({**environment, "CARREL_RESIDENCY": "off"}, fill, 3)] if fill else []
    try:
        for seed, job in enumerate(jobs, 1):
            programs.append(Program({**environment, **job.variables}, size, seed))
        pair = programs[-2:]
        seconds = []
        for number in range(2 * rounds):
            seconds.append(float(pair[number % 2].order("touch")))
            time.sleep(1.0)  # the lease goes back, and nobody waits for it
        print(f"each turn: {' '.join(f'{one:.3f}' for one in seconds)} s (the first ones register host memory)")
        print(median(f"two states of {size / GB:.3g} GB exchanged, with the lease", seconds[2:], "s", at_most=0.8).row())
        found = [one.order("check") for one in pair]
        print(f"states: {' '.join(found)}")
        return found == ["same", "same"]
    finally:
        for one in programs:
            one.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=20.0)
    parser.add_argument("--fill", type=float, default=45.0)
    parser.add_argument("--rounds", type=int, default=5, help="at least 2: the first one registers host memory")
    parser.add_argument("--fake", action="store_true")
    parser.add_argument("--program", nargs=2, type=int)
    given = parser.parse_args()
    if given.program:
        program(*given.program)
        return 0
    size, fill = int(given.size * GB), int(given.fill * GB)
    with tempfile.TemporaryDirectory() as place:
        at, variables = Path(place), dict[str, str]()
        if given.fake:
            size, fill = 64 * MIB, 0
            driver = build(at / "driver", memory=110 * MIB)
            variables = driver.environment()
            devices = tuple(Device(uuid=gpu.uuid, index=0, type="gpu", name=gpu.name, memory=gpu.memory) for gpu in driver.gpus)
        else:
            devices = discover()[:1]
        compile_library(at / "library.so", sources=_SOURCES)
        rules = LendingRules(margin=2 * MIB if given.fake else 1024 * MIB)
        ready = 0 if given.fake else int(2.2 * size)
        broker = start_broker(at / "broker", devices=devices, environment=variables, rules=rules, host_memory_ready=ready)
        preload = {"LD_PRELOAD": str(at / "library.so"), "CARREL_DEVICES": "lease"}
        try:
            good = exchange(broker, {**(variables or os.environ), **preload}, size, fill, max(2, given.rounds))
        finally:
            broker.close()
        print("".join(line for line in broker.log.read_text().splitlines(keepends=True) if " bus " in line))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
