"""A node with the fake driver and a real broker, and programs on it that have the residency library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels import FakeKernel

from carrel.core.domain.lease import LendingRules
from carrel.core.domain.node import Device
from support.broker_process import BrokerProcess, FakeJob
from support.fake_driver import FakeDriver

sys.path.insert(0, str(Path(__file__).parents[1] / "residency"))

from residency_rig import Program, fake_driver, library

MIB = 1024**2
MEMORY = 100 * MIB
#: Of the state of each process: two do not fit a device.
SIZE = 60 * MIB


class Node:
    """A broker on a machine with the fake driver, and programs that have the library."""

    def __init__(self, driver: FakeDriver, broker: BrokerProcess) -> None:
        self.driver, self.broker = driver, broker
        self._jobs = 0
        self._programs: list[Program] = []
        self._kernels: list[FakeKernel] = []

    def environment(self, job: FakeJob, **variables: str) -> dict[str, str]:
        environment = {**self.driver.environment(), **job.variables}
        environment |= {"LD_PRELOAD": str(library()), "CARREL_RESIDENCY_PIECE": str(8 * MIB), "CARREL_DEVICES": "lease"}
        return environment | variables

    def session(self, **about: Any) -> FakeJob:
        self._jobs += 1
        return self.broker.session(self._jobs, owner=f"user{self._jobs}", **about)

    def task(self) -> FakeJob:
        self._jobs += 1
        return self.broker.task(self._jobs, devices=1)

    def program(self, job: FakeJob | None = None, **variables: str) -> Program:
        started = Program(self.environment(job or self.session(), **variables))
        self._programs.append(started)
        return started

    def kernel(self, job: FakeJob | None = None, *, library: bool = True, **options: Any) -> FakeKernel:
        """What acts as a kernel's hook, in a process with the library; or without."""
        job = job or self.session()
        environment = self.environment(job) if library else self.driver.environment()
        started = FakeKernel(self.broker, job, environment=environment, **options)
        self._kernels.append(started)
        return started

    def tenant(self, pid: int) -> dict[str, Any]:
        (found,) = [row for row in self.broker.status()["tenants"] if row["pid"] == pid]
        return dict(found)

    def state(self, program: Program) -> str:
        return str(self.tenant(program.process.pid)["state"])

    def take(self, kernel: FakeKernel, lease: dict[str, Any], size: int) -> None:
        kernel.tell(f"!cuda {size} {lease['devices'][0]['uuid']}")
        kernel.expect("cuda")

    def close(self) -> None:
        for program in self._programs:
            program.close()
        for kernel in self._kernels:
            kernel.close()


def start_node(place: Path, brokers: Callable[..., BrokerProcess], *, gpus: int = 1, **options: Any) -> Node:
    """A machine with so many devices, and a broker that lends them; `options` are the broker's."""
    driver = fake_driver(place / "machine", gpus=gpus, memory=MEMORY)
    devices = tuple(
        Device(uuid=gpu.uuid, index=index, type="h200", name=gpu.name, memory=MEMORY) for index, gpu in enumerate(driver.gpus)
    )
    rules = options.pop("rules", LendingRules(margin=2 * MIB))
    return Node(driver, brokers(devices=devices, environment=driver.environment(), rules=rules, still=False, **options))


class State:
    """What a program has on its device, and what it should find there."""

    def __init__(self, program: Program, *, size: int = SIZE, seed: int = 1) -> None:
        self.program, self.size, self.seed = program, size, seed
        program.good("init")
        program.good("context")
        self.at = program.good("alloc", size=size, seed=seed)["at"]

    def same(self) -> None:
        answer = self.program.order("check", at=self.at, size=self.size, seed=self.seed)
        assert answer == {"result": 0, "same": True}

    def computes(self) -> None:
        """The program computes, without an end, on a small part beside its state."""
        small = self.program.good("alloc", size=4096, seed=1)["at"]
        self.program.order("busy", running=1)  # so that it keeps its lease between two steps
        self.program.begin("steps", at=small, size=4096, seed=1, times=10**9)
