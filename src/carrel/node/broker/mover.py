"""Carrying out moves of GPU state, in worker threads: what the core has written down, done with the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carrel.core.domain.units import format_size
from carrel.core.transport.reactor import Reactor
from carrel.node.broker.core.effects import Checkpoint, Gather, MoveBack, MoveOut, Restore, Spill, Unspill
from carrel.node.broker.processes import roots, start_time
from carrel.node.runner.tree import descendants, measure
from carrel.node.suspension.ports import Disk, DriverState, Ending, Moved, Suspender, Target

_log = logging.getLogger(__name__)


class Mover:
    """Moves states. Each method calls back in the loop with what has come of it."""

    def __init__(self, loop: Reactor, suspender: Suspender, *, margin: int, disk: Disk | None = None) -> None:
        """`margin`: bytes that must be free beside a state that comes back; `disk`: where states go that leave host memory."""
        self._disk = disk
        self._loop = loop
        self._suspender = suspender
        self._margin = margin

    def gather(self, what: Gather, done: Callable[[list[Target]], None]) -> None:
        """Find which processes of a tenant have state on its devices."""
        self._loop.work(lambda: self._present(what.known, what.devices, what.others), done)

    def out(self, what: MoveOut, done: Callable[[Moved], None]) -> None:
        """Move a state to host memory."""

        def move() -> Moved:
            # What is moved becomes memory of the process: with more than its job may have it would be ended, and the state lost.
            used = _in_memory(what.targets) if what.memory else 0
            if what.memory and used + what.size > what.memory:
                about = f"its state ({format_size(what.size)}) and what it has in memory ({format_size(used)})"
                return Moved(
                    ending=Ending.UNSUSPENDABLE,
                    message=f"{about} are more than its job asked for ({format_size(what.memory)})",
                )
            return self._suspender.suspend(what.targets, devices=what.devices, size=what.size)

        self._loop.work(move, lambda moved: done(_noted("suspend", what.tenant, moved)))

    def checkpoint(self, what: Checkpoint, done: Callable[[Moved], None]) -> None:
        """Take the contexts of processes off their devices; their state has left them."""
        self._loop.work(
            lambda: self._suspender.suspend(what.targets, devices=what.devices, size=what.size),
            lambda moved: done(_noted("checkpoint", what.tenant, moved)),
        )

    def back(self, what: MoveBack | Restore, done: Callable[[Moved], None]) -> None:
        """Bring a state back, or the contexts of processes whose state follows."""
        size = sum(what.state.values())

        def move() -> Moved:
            full = self._too_full(what.targets, what.state, what.memory)
            if full:
                return Moved(ending=Ending.RETRY, message=full)
            moved = self._suspender.resume(what.targets, devices=what.devices, size=size, moves=what.moves)
            if moved.ending is Ending.UNVERIFIED:
                # Not unlocked, so it has computed nothing where it should not be: back to host memory, and another try.
                again = self._suspender.suspend(what.targets, devices=what.devices, size=size)
                ending = Ending.RETRY if again.ending is Ending.DONE else Ending.LOST
                return replace(moved, ending=ending, message=f"{moved.message} {again.message}".strip())
            return moved

        self._loop.work(move, lambda moved: done(_noted("resume", what.tenant, moved)))

    def spill(self, what: Spill, done: Callable[[Moved], None]) -> None:
        """Put a state onto the disk."""
        disk = self._disk
        if disk is None:
            done(Moved(ending=Ending.RETRY, message="no state can go to a disk here"))
            return
        self._loop.work(lambda: disk.spill(what.target, size=what.size), lambda moved: done(_noted("spill", what.tenant, moved)))

    def unspill(self, what: Unspill, done: Callable[[Moved], None]) -> None:
        """Bring a state from the disk."""
        disk = self._disk
        if disk is None:
            done(Moved(ending=Ending.LOST, message="it was on a disk that this broker does not have"))
            return
        self._loop.work(
            lambda: disk.unspill(what.target, size=what.size), lambda moved: done(_noted("unspill", what.tenant, moved))
        )

    def _too_full(self, targets: Sequence[Target], state: Mapping[str, int], memory: Mapping[str, int]) -> str:
        """Why the state must not be brought back now, or "": a restore that finds no room is the end of it.

        The policy has made room by the last look; this is one more, right before.
        """
        if {DriverState.LOCKED, DriverState.RUNNING} & {self._suspender.state(target) for target in targets}:
            return ""  # a broker that was killed had begun: it is back already, and would be taken for somebody else
        used = self._suspender.use().used
        for uuid, size in state.items():
            needed = min(size + self._margin, max(size, int(memory.get(uuid, 0) * 0.95)))
            free = max(0, memory.get(uuid, 0) - used.get(uuid, 0))
            if uuid in used and free < needed:
                return f"{format_size(free)} of {uuid} are free, {format_size(needed)} are needed"
        return ""

    def _present(self, known: Sequence[Target], devices: Sequence[str], others: Sequence[int]) -> list[Target]:
        """The tenant's processes with GPU state: those that are known, and those of its descendants that are on its devices."""
        processes = self._suspender.use().processes
        found = {target.pid: target for target in known if target is known[0] or start_time(target.pid) == target.start}
        there = sorted({pid for uuid in devices for pid in processes.get(uuid, ())})
        for pid, root in roots(there, [known[0].pid, *others]).items():
            start = start_time(pid)
            if start is not None and root == known[0].pid and pid not in found:
                found[pid] = Target(pid=pid, start=start)
        return list(found.values())


def _in_memory(targets: Sequence[Target]) -> int:
    """Bytes of host memory that a tenant's processes take, and all below the first of them: workers count in their job, too."""
    first = targets[0].pid
    return measure(sorted({first, *descendants(first), *(target.pid for target in targets)})).memory


def _noted(what: str, tenant: str, moved: Moved) -> Moved:
    _log.info("%s %s: %s, %d bytes in %.3f s %s", what, tenant, moved.ending, moved.bytes, moved.seconds, moved.message)
    return moved
