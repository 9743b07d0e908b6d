"""Moving state that does not exist: a `Suspender` for simulated devices, with a speed and with faults."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence

from carrel.core.domain.lease import Tier
from carrel.core.domain.ports import Clock
from carrel.node.broker.config import Simulation
from carrel.node.suspension.ports import Capability, DriverState, Ending, Moved, Target, Use

#: How long the fault "unverified" lasts.
_SHOWN_SECONDS = 3.0


class SimulatedSuspender:
    """A `Suspender` that only takes time. Faults come in an order that the seed decides."""

    def __init__(self, simulation: Simulation, devices: Sequence[str], monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        self._simulation = simulation
        self._devices = tuple(devices)
        self._random = random.Random(simulation.seed)
        self._lock = threading.Lock()
        self._suspended: set[Target] = set()
        self._closing = threading.Event()
        #: Devices that still show a process which is off them: until when (monotonic seconds), and the process.
        self._shown: dict[str, tuple[float, int]] = {}

    def seed(self, target: Target) -> None:
        """Before the first call, by a broker that was restarted: this one's state is in host memory."""
        self._suspended.add(target)

    def probe(self) -> Capability:
        """Always possible, and always called simulated."""
        rate = self._simulation.rate
        message = "simulated devices: no state is really moved"
        return Capability(tier=Tier.SIMULATED, message=message, suspend_rate=rate, restore_rate=rate, homes_move=True)

    def state(self, target: Target) -> DriverState:
        """Where the made-up state is."""
        with self._lock:
            return DriverState.CHECKPOINTED if target in self._suspended else DriverState.RUNNING

    def suspend(self, targets: Sequence[Target], *, devices: Sequence[str], size: int) -> Moved:
        """Take as long as the move would, or act out a fault."""
        fault = self._fault("lock_timeout", "checkpoint_error", "checkpoint_lost", "unverified")
        if fault == "lock_timeout":
            return Moved(ending=Ending.RETRY, message="simulated: the lock timed out; nothing has changed")
        if fault == "checkpoint_error":
            return Moved(ending=Ending.UNSUSPENDABLE, message="simulated: the driver refuses to move this state")
        seconds = self._take(size)
        if fault == "checkpoint_lost":
            return Moved(ending=Ending.LOST, message="simulated: the state was lost on its way to host memory", seconds=seconds)
        with self._lock:
            self._suspended.update(targets)
            if fault == "unverified":
                self._shown |= dict.fromkeys(devices, (self._monotonic() + _SHOWN_SECONDS, targets[0].pid))
        if fault == "unverified":
            message = "simulated: the device still shows the process"
            return Moved(ending=Ending.UNVERIFIED, message=message, bytes=size, seconds=seconds)
        return Moved(ending=Ending.DONE, bytes=size, seconds=seconds)

    def resume(
        self,
        targets: Sequence[Target],
        *,
        devices: Sequence[str],  # noqa: ARG002 - as the port has it
        size: int,
        moves: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Moved:
        """Take as long as the move would, or act out a fault."""
        fault = self._fault("restore_retry", "lost")
        if fault == "restore_retry":
            return Moved(ending=Ending.RETRY, message="simulated: the restore did not begin; nothing has changed")
        seconds = self._take(size)
        if fault == "lost":
            return Moved(ending=Ending.LOST, message="simulated: the state was lost on its way back", seconds=seconds)
        with self._lock:
            self._suspended.difference_update(targets)
        return Moved(ending=Ending.DONE, bytes=size, seconds=seconds)

    def spill(self, target: Target, *, size: int) -> Moved:  # noqa: ARG002 - as the port has it
        """Take as long as it would, or act out a fault."""
        if self._fault("disk_full"):
            return Moved(ending=Ending.RETRY, message="simulated: the disk takes nothing; nothing has changed")
        return Moved(ending=Ending.DONE, bytes=size, seconds=self._take(size, self._simulation.disk_rate))

    def unspill(self, target: Target, *, size: int) -> Moved:  # noqa: ARG002
        """Take as long as it would, or act out a fault."""
        if self._fault("disk_lost"):
            return Moved(ending=Ending.LOST, message="simulated: the state on the disk was damaged")
        return Moved(ending=Ending.DONE, bytes=size, seconds=self._take(size, self._simulation.disk_rate))

    def use(self) -> Use:
        """Nobody is on a device that does not exist, except for the fault "unverified"."""
        now = self._monotonic()
        with self._lock:
            self._shown = {uuid: shown for uuid, shown in self._shown.items() if shown[0] > now}
            return Use(
                processes={uuid: {pid: 0} for uuid, (_until, pid) in self._shown.items()}, used=dict.fromkeys(self._devices, 0)
            )

    def close(self) -> None:
        """End the moves that are under way."""
        self._closing.set()

    def _take(self, size: int, rate: float | None = None) -> float:
        seconds = size / (rate or self._simulation.rate)
        self._closing.wait(seconds)
        return seconds

    def _fault(self, *names: str) -> str | None:
        with self._lock:
            for name in names:
                share = self._simulation.faults.get(name, 0.0)
                if share and self._random.random() < share:
                    return name
        return None
