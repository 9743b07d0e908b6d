"""A machine with the fake driver, a suspender for it with short deadlines, and processes with CUDA state on it."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from carrel.node.suspension import CudaSuspender, Deadlines, DriverState, Moved, Target
from carrel.node.suspension.specimen import Specimen
from carrel.testing.waiting import wait_until
from support.fake_driver import FakeDriver, build, start_specimen

MIB = 1024**2
#: Of a specimen.
SIZE = 4 * MIB
#: A call that goes right has time for it, however busy the machine is.
PATIENT = Deadlines(start=120.0, state=120.0, lock=60.0, slack=60.0, move=120.0, unlock=120.0, nvml=120.0, verify=60.0)
#: What a call gets that is going to hang; the second try gets it, too.
SHORT = 3.0
#: The limits of the calls.
LIMITS: dict[str, dict[str, float]] = {
    "cuCheckpointProcessGetState": {"state": SHORT},
    "cuCheckpointProcessLock": {"lock": SHORT / 2, "slack": SHORT / 2},
    "cuCheckpointProcessCheckpoint": {"move": SHORT},
    "cuCheckpointProcessRestore": {"move": SHORT},
    "cuCheckpointProcessUnlock": {"unlock": SHORT},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"nvml": SHORT},
    "nvmlInitWithFlags": {"nvml": SHORT},
}


@functools.cache
def _libraries() -> tuple[FakeDriver, tempfile.TemporaryDirectory[str]]:
    place = tempfile.TemporaryDirectory(prefix="carrel-fake-driver-")
    return build(Path(place.name)), place


def fake_driver(state: Path, **options: Any) -> FakeDriver:
    """A machine of its own; the libraries are compiled once per run of the tests."""
    return _libraries()[0].another(state, **options)


@dataclass
class Rig:
    driver: FakeDriver
    suspender: CudaSuspender
    stack: ExitStack
    #: Devices of each specimen that was started here.
    homes: dict[Target, str] = field(default_factory=dict)

    def specimen(self, device: int = 0, size: int = SIZE, managed: int = 0) -> Specimen:
        uuid = self.driver.uuids[device]
        started = start_specimen(self.driver, size=size, device=uuid, managed=managed)
        self.stack.callback(started.close)
        self.stack.callback(started.kill)  # before close: many are left suspended
        self.homes[started.target] = uuid
        return started

    def suspend(self, *specimens: Specimen, suspender: CudaSuspender | None = None) -> Moved:
        return (suspender or self.suspender).suspend(
            [one.target for one in specimens], devices=self._devices(specimens), size=SIZE * len(specimens)
        )

    def resume(self, *specimens: Specimen, **options: Any) -> Moved:
        devices = options.pop("devices", self._devices(specimens))
        return self.suspender.resume([one.target for one in specimens], devices=devices, size=SIZE * len(specimens), **options)

    def _devices(self, specimens: tuple[Specimen, ...]) -> list[str]:
        return list(dict.fromkeys(self.homes[one.target] for one in specimens))

    def state(self, specimen: Specimen) -> DriverState:
        return self.suspender.state(specimen.target)

    def on_devices(self) -> set[tuple[int, str]]:
        """(pid, device) of everything that NVML shows."""
        return {(pid, uuid) for uuid, present in self.suspender.use().processes.items() for pid in present}

    def another_suspender(self, **options: Any) -> CudaSuspender:
        made = CudaSuspender(environment=self.driver.environment(), deadlines=options.pop("deadlines", PATIENT), **options)
        self.stack.callback(made.close)
        return made


@contextmanager
def rig(
    directory: Path, *, suspender: dict[str, Any] | None = None, limits: dict[str, float] | None = None, **options: Any
) -> Iterator[Rig]:
    """`limits`: deadlines that a call of the test is going to miss; of the others nobody needs to be afraid."""
    with ExitStack() as stack:
        driver = fake_driver(directory / "driver", **options)
        made = CudaSuspender(environment=driver.environment(), deadlines=replace(PATIENT, **(limits or {})), **(suspender or {}))
        stack.callback(made.close)
        yield Rig(driver, made, stack)


def await_fault(driver: FakeDriver, call: str) -> None:
    """Wait until every fault for `call` is under way."""
    wait_until(lambda: not any(line.startswith(f"{call} ") for line in driver.pending()), f"somebody to make the call {call}")


@contextmanager
def once(driver: FakeDriver, call: str, act: Callable[[], object]) -> Iterator[None]:
    """Within: `act` is done as soon as the fault for `call` is under way."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(lambda: (await_fault(driver, call), act()))
        yield
        done.result()


def hung(*calls: str) -> dict[str, float]:
    """The limits with which these calls are given up soon."""
    return {name: limit for call in calls for name, limit in LIMITS[call].items()}


def blocks(call: Callable[[], object]) -> bool:
    """Whether the call waits (its process is locked or suspended) instead of answering."""
    try:
        call()
    except TimeoutError:
        return True
    return False
