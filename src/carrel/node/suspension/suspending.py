"""One suspension, and one restore: all are moved and it is seen that they are, or all are left as they were."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from carrel.node.devices.processes import OnDevices
from carrel.node.suspension.calls import (
    NOT_READY,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    REFUSALS,
    Answer,
    Calls,
    Deadlines,
    NoAnswer,
)
from carrel.node.suspension.operation import FailureLimit, Stop, listed, survey, where
from carrel.node.suspension.ports import DriverState, Ending, Target
from carrel.node.suspension.survival import staying_libraries, why_it_stays


class Suspending:
    """One suspension: lock all, checkpoint all, see that the devices are free of them; or leave all of them running."""

    def __init__(self, calls: Calls, deadlines: Deadlines, patience: FailureLimit) -> None:
        self._calls = calls
        self._deadlines = deadlines
        self._patience = patience
        self._taking_part: list[Target] = []
        self._first: Target | None = None
        self._size = 0
        #: False until something may have changed.
        self.touched = False

    def run(self, targets: Sequence[Target], devices: Sequence[str], size: int) -> int:
        """Suspend `targets` and return the bytes that left the devices. Raises `Stop` for every other ending."""
        states = survey(self._calls, targets)
        self._first = targets[0]
        self._taking_part = list(states)
        before = self._before(devices)
        self._refuse_unknown(before, targets, states)
        present = listed(before, targets)
        self._size = max(size, present)
        self.touched = True
        self._refuse_fragile(states)
        for target in list(self._taking_part):
            if states[target] is DriverState.RUNNING:
                self._lock(target)
        # Once more: a cell that ran on may have loaded one meanwhile. Locked, it cannot begin to use the GPU with it.
        self._refuse_fragile(states)
        for target in list(self._taking_part):
            if states[target] is not DriverState.CHECKPOINTED:
                self._checkpoint(target)
        self._patience.forget(targets)
        running = any(state is DriverState.RUNNING for state in states.values())
        self._verify(before, targets, devices, expected=self._size if running and not present else 0)
        return present or (self._size if running else 0)

    def _before(self, devices: Sequence[str]) -> OnDevices:
        """What the devices show now: without that, nobody could tell afterwards that they are free."""
        try:
            now = self._calls.use()
        except NoAnswer as error:
            raise Stop(Ending.RETRY, f"{error}: nothing was begun, because the end could not be seen.") from error
        for uuid in devices:
            if uuid not in now.processes:
                why = now.unread.get(uuid, "it is not there")
                raise Stop(Ending.RETRY, f"device {uuid} does not answer ({why}): nothing was begun.")
        return now

    def _refuse_unknown(self, before: OnDevices, targets: Sequence[Target], states: dict[Target, DriverState]) -> None:
        for target in targets:
            if target not in states and where(before, target.pid):
                raise Stop(
                    Ending.UNSUSPENDABLE,
                    f"process {target.pid} is on a device, but the driver does not take it for one that it can suspend "
                    "(another user's, or without the permission to look into it).",
                )

    def _refuse_fragile(self, states: dict[Target, DriverState]) -> None:
        """Processes that would not survive it are not suspended, also if they say that they would.

        What an earlier try has suspended already is left out: the harm, if any, is done.
        """
        still = [target for target in self._taking_part if states[target] is not DriverState.CHECKPOINTED]
        found = tuple(dict.fromkeys(name for target in still for name in staying_libraries(target.pid)))
        if found:
            self._let_run(Ending.UNSUSPENDABLE, why_it_stays(found), libraries=found)

    def _lock(self, target: Target) -> None:
        answer = self._calls.lock(target)
        if answer.ok or answer.state in (DriverState.LOCKED, DriverState.CHECKPOINTED):
            return
        if self._left(target, answer, "while it was being locked"):
            return
        if answer.state is DriverState.FAILED:
            raise Stop(Ending.LOST, f"process {target.pid}: the lock answered {answer.name} and left the driver's state FAILED.")
        if answer.code != NOT_READY and not answer.hung:
            self._let_run(Ending.UNSUSPENDABLE, f"process {target.pid}: the lock answered {answer.name}; it goes on running.")
        what = answer.hung or f"its work did not come to a stop within {self._deadlines.lock:g} s ({answer.name})"
        if self._patience.failed(target):
            self._let_run(
                Ending.UNSUSPENDABLE, f"process {target.pid}: {what}, {self._patience.limit} times in a row; it goes on running."
            )
        self._let_run(Ending.RETRY, f"process {target.pid}: {what}; it goes on running.")

    def _checkpoint(self, target: Target) -> None:
        answer = self._calls.checkpoint(target, self._size)
        if answer.ok or answer.state is DriverState.CHECKPOINTED:
            return
        if self._left(target, answer, "while its state was being copied (host memory may have run out)"):
            return
        if answer.state is DriverState.FAILED:
            raise Stop(
                Ending.LOST, f"process {target.pid}: the checkpoint answered {answer.name} and left the driver's state FAILED."
            )
        if answer.hung:
            self._let_run(Ending.RETRY, f"process {target.pid}: the checkpoint gave {answer.hung}; it was unlocked and goes on.")
        self._let_run(
            Ending.UNSUSPENDABLE, f"process {target.pid}: the checkpoint answered {answer.name}; it was unlocked and goes on."
        )

    def _left(self, target: Target, answer: Answer, when: str) -> bool:
        """True when it is gone. The first process takes the operation with it, a child only itself."""
        told = bool(answer.hung) or answer.code in REFUSALS
        if answer.state is not DriverState.GONE and (told or not self._calls.died(target)):
            return False
        self._taking_part.remove(target)
        if target == self._first:
            self._let_run(Ending.GONE, f"process {target.pid} ended {when}.")
        return True

    def _let_run(self, ending: Ending, message: str, *, libraries: tuple[str, ...] = ()) -> None:
        """Undo what was done to all of them, then stop."""
        for target in self._taking_part:
            state = self._calls.state(target)
            if state is DriverState.CHECKPOINTED:
                answer = self._calls.restore(target, self._size)
                if not answer.ok and answer.state is DriverState.CHECKPOINTED:
                    raise Stop(Ending.LOST, f"{message} Process {target.pid} could not be brought back: {answer.name}.")
                state = self._calls.state(target)
            if state is DriverState.LOCKED:
                answer = self._calls.unlock(target)
                if not answer.ok and answer.state is DriverState.LOCKED:  # once more, after a hang
                    answer = self._calls.unlock(target)
                state = DriverState.RUNNING if answer.ok else answer.state
            if state not in (DriverState.RUNNING, DriverState.NO_CUDA, DriverState.GONE):
                raise Stop(Ending.LOST, f"{message} Process {target.pid} stayed {state.value}.")
        raise Stop(ending, message, libraries=libraries)

    def _verify(self, before: OnDevices, targets: Sequence[Target], devices: Sequence[str], *, expected: int) -> None:
        """Look until NVML shows none of them. `expected`: bytes that must have gone where it does not show processes at all."""
        deadline = time.monotonic() + self._deadlines.verify
        pause = 0.005
        while True:
            why = self._still_there(before, targets, devices, expected)
            if not why:
                return
            if time.monotonic() >= deadline:
                raise Stop(Ending.UNVERIFIED, f"The driver says that the state is in host memory, but {why}.")
            self._calls.wait(pause)
            pause *= 2

    def _still_there(self, before: OnDevices, targets: Sequence[Target], devices: Sequence[str], expected: int) -> str:
        try:
            now = self._calls.use()
        except NoAnswer as error:
            return str(error)
        for uuid in devices:
            if uuid not in now.processes:
                return f"device {uuid} does not answer ({now.unread.get(uuid, 'it is not there')})"
        for target in targets:
            shown = where(now, target.pid)
            if shown:
                return f"{', '.join(sorted(shown))} still shows process {target.pid}"
        fallen = sum(before.used.get(uuid, 0) - now.used.get(uuid, 0) for uuid in devices)
        if expected and fallen < expected // 2:
            return f"NVML shows no processes here, and memory in use fell by {fallen} of about {expected} bytes"
        return ""


class Resuming:
    """One restore: bring all back, see that they are where they should be, unlock all."""

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
