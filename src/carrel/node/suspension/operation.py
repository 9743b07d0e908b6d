"""What suspending and resuming have in common: who takes part, and how an operation ends early."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from carrel.node.devices.processes import OnDevices
from carrel.node.suspension.calls import Calls
from carrel.node.suspension.ports import DriverState, Ending, Target


class Stop(Exception):
    """The operation is over before its end. All that had to be undone has been undone."""

    def __init__(self, ending: Ending, message: str, *, libraries: tuple[str, ...] = ()) -> None:
        """`libraries`: those because of which it was not begun (`carrel.node.suspension.survival`)."""
        super().__init__(message)
        self.ending = ending
        self.message = message
        self.libraries = libraries


class FailureLimit:
    """Counts failures in a row per process: what may work later is tried only so often."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._guard = threading.Lock()
        self._failures: dict[Target, int] = {}

    def failed(self, target: Target) -> bool:
        """Count one more; True when that was the last try."""
        with self._guard:
            self._failures[target] = self._failures.get(target, 0) + 1
            return self._failures[target] >= self.limit

    def forget(self, targets: Sequence[Target]) -> None:
        """It worked, or they are gone."""
        with self._guard:
            for target in targets:
                self._failures.pop(target, None)


def survey(calls: Calls, targets: Sequence[Target]) -> dict[Target, DriverState]:
    """Return the states of those that have CUDA state. Raises `Stop` when the first is gone, or one has failed for good.

    The first is the process that the state is of, the others its children: those that are gone, like those without CUDA,
    take no part.
    """
    states = {target: calls.state(target) for target in targets}
    if not states or states[targets[0]] is DriverState.GONE:
        raise Stop(Ending.GONE, f"process {targets[0].pid} is gone." if states else "No process was named.")
    for target, state in states.items():
        if state is DriverState.FAILED:
            raise Stop(Ending.LOST, f"process {target.pid} is in the driver's state FAILED, which nothing can correct.")
    return {target: state for target, state in states.items() if state not in (DriverState.GONE, DriverState.NO_CUDA)}


def where(now: OnDevices, pid: int) -> set[str]:
    """Return the devices that show the process."""
    return {uuid for uuid, present in now.processes.items() if pid in present}


def listed(now: OnDevices, targets: Sequence[Target]) -> int:
    """Return the bytes that the driver shows for these processes."""
    pids = {target.pid for target in targets}
    return sum(size for present in now.processes.values() for pid, size in present.items() if pid in pids)
