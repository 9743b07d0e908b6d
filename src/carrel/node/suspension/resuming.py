"""One restore: bring all back, see that they are where they should be, unlock all."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from carrel.node.suspension.calls import INVALID_VALUE, OPERATING_SYSTEM, OUT_OF_MEMORY, Answer, Calls, Deadlines, NoAnswer
from carrel.node.suspension.operation import FailureLimit, Stop, listed, survey, where
from carrel.node.suspension.ports import DriverState, Ending, Target


class Resuming:
    """Made for one restore."""

    def __init__(self, calls: Calls, deadlines: Deadlines, patience: FailureLimit) -> None:
        self._calls = calls
        self._deadlines = deadlines
        self._patience = patience
        self._back: list[Target] = []
        self._size = 0
        #: False until something may have changed.
        self.touched = False

    def run(self, targets: Sequence[Target], devices: Sequence[str], size: int, moves: Mapping[str, str]) -> int:
        """Restore `targets` onto `devices` and return the bytes that are there. Raises `Stop` for every other ending."""
        states = survey(self._calls, targets)
        self._size = size
        self.touched = any(state is not DriverState.RUNNING for state in states.values())
        for target, state in states.items():
            if state is DriverState.CHECKPOINTED:
                self._restore(target, targets[0], moves)
            elif state is DriverState.LOCKED:
                self._back.append(target)
        self._patience.forget(targets)
        arrived = self._verify(devices)
        for target in self._back:
            self._unlock(target, targets[0])
        return arrived

    def _restore(self, target: Target, first: Target, moves: Mapping[str, str]) -> None:
        answer = self._calls.restore(target, self._size, moves)
        if moves and answer.code == INVALID_VALUE and answer.state is DriverState.CHECKPOINTED:
            answer = self._calls.restore(target, self._size)  # drivers refuse maps on some hardware; home always works
        if answer.hung and answer.state is DriverState.CHECKPOINTED:
            answer = self._calls.restore(target, self._size, moves)
        if answer.ok or answer.state is DriverState.LOCKED:
            self._back.append(target)
        elif answer.state is DriverState.GONE:
            if target == first:
                raise Stop(Ending.GONE, f"process {target.pid} ended while its state was being brought back.")
        elif answer.state is not DriverState.RUNNING:
            self._refused(target, answer)

    def _refused(self, target: Target, answer: Answer) -> None:
        what = f"process {target.pid}: the restore answered {answer.name}"
        if answer.state is DriverState.FAILED:
            raise Stop(Ending.LOST, f"{what} and left the driver's state FAILED.")
        if answer.code in (OUT_OF_MEMORY, OPERATING_SYSTEM):
            raise Stop(Ending.LOST, f"{what}. After that no restore of this process succeeds any more; it has to be ended.")
        if self._patience.failed(target):
            raise Stop(Ending.LOST, f"{what}, {self._patience.limit} times in a row; it has to be ended.")
        self._suspend_again()
        raise Stop(Ending.RETRY, f"{what}; its state is still in host memory.")

    def _verify(self, devices: Sequence[str]) -> int:
        """See that they are on `devices` and nowhere else. Where NVML shows no processes at all, believe the driver."""
        deadline = time.monotonic() + self._deadlines.verify
        pause = 0.005
        while self._back:
            try:
                now = self._calls.use()
            except NoAnswer:
                return 0
            shown = {target.pid: where(now, target.pid) for target in self._back}
            wrong = {pid: places - set(devices) for pid, places in shown.items() if places - set(devices)}
            if wrong:
                pid, places = next(iter(wrong.items()))
                again = self._suspend_again()
                raise Stop(
                    Ending.UNVERIFIED,
                    f"process {pid} came back on {', '.join(sorted(places))} and not on {', '.join(devices)}; "
                    f"it was not unlocked, and {again}.",
                )
            if all(shown.values()) or time.monotonic() >= deadline:
                return listed(now, self._back)
            self._calls.wait(pause)
            pause *= 2
        return 0

    def _suspend_again(self) -> str:
        """Bring those that are back, and locked, to host memory once more: the device under them is not theirs."""
        kept = []
        for target in self._back:
            answer = self._calls.checkpoint(target, self._size)
            if not answer.ok and answer.state not in (DriverState.CHECKPOINTED, DriverState.GONE):
                kept.append(f"process {target.pid} could not be suspended again ({answer.name})")
        return "; ".join(kept) or "its state is in host memory again"

    def _unlock(self, target: Target, first: Target) -> None:
        answer = self._calls.unlock(target)
        if answer.hung and answer.state is DriverState.LOCKED:
            answer = self._calls.unlock(target)
        if answer.ok or answer.state is DriverState.RUNNING:
            return
        if answer.state is DriverState.GONE:
            if target == first:
                raise Stop(Ending.GONE, f"process {target.pid} ended before it was unlocked.")
            return
        raise Stop(
            Ending.LOST,
            f"process {target.pid}: the unlock answered {answer.name}; it stays {answer.state.value} and has to be ended.",
        )
