"""EASY backfill: later jobs may start early if they do not delay the first job that is blocked.

Source of the idea: D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from math import inf

from carrel.domain.node import Share
from carrel.domain.placement import Waiting
from carrel.domain.resources import Resources
from carrel.policy.fit import Fit
from carrel.policy.rooms import Room

#: A moment, and the rooms.
Slot = tuple[float, Sequence[Room]]


def earliest(wanted: Resources, rooms: Iterable[Room], now: float) -> Slot | None:
    """Return when and where `wanted` first fits if every job ends at its walltime and nothing else starts.

    None when it never fits. Ties go to the nodes with the fewest GPUs free at that moment, then to the first by name.
    """
    count = wanted.nodes
    best: list[tuple[float, int, int]] = []
    found: dict[int, Room] = {}
    for room in rooms:
        if not room.could_hold(wanted):
            continue
        moment = first_fit(wanted, room, now, best[-1][0] if len(best) == count else inf)
        if moment is not None:
            found[room.index] = room
            insort(best, (*moment, room.index))
            del best[count:]
    return (best[-1][0], [found[index] for _, _, index in best]) if len(best) == count else None


def first_fit(wanted: Resources, room: Room, now: float, no_later: float) -> tuple[float, int] | None:
    """Return the first moment up to `no_later` at which `wanted` fits in `room`, and the GPUs free then."""
    cpus, memory, gpus = room.cpus, room.memory, room.free_of(wanted.gpu_type)
    if cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus:
        return now, gpus
    for release in sorted(room.releases.values()):
        if release.at > no_later:
            return None
        cpus += release.cpus
        memory += release.memory
        gpus += len(release.gpus) if wanted.gpu_type is None else release.gpus.count(wanted.gpu_type)
        if cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus:
            return max(release.at, now), gpus
    return None


class Promise:
    """What the first blocked job is promised: these nodes, at this moment."""

    def __init__(self, job: Waiting, at: float, rooms: Sequence[Room]) -> None:
        self.job = job
        self.at = at
        self.rooms = rooms
        #: Of the rooms.
        self.indexes = frozenset(room.index for room in rooms)
        # What will be free there at that moment.
        self._left = {room.index: _Left(room, at, job.resources.gpu_type) for room in rooms}

    def admits(self, room: Room, wanted: Resources, ends_by: float) -> bool:
        """True when `wanted` fits in a promised `room` now, and ends before it is needed or leaves enough beside it.

        Of all that asks for the same, what is too long is so for one reason: it ends after `at`.
        """
        if not room.has_free(wanted):
            return False
        return ends_by <= self.at or self._left[room.index].holds_beside(room, wanted, self.job.resources)

    def note(self, room: Room, wanted: Resources, ends_by: float) -> None:
        """Count in a job that is about to start in a promised `room` and that `admits` let through."""
        if ends_by > self.at:
            self._left[room.index].lose(room, wanted)


class _Left:
    """What will be free in one room at some moment, as far as one kind of job is concerned."""

    __slots__ = ("_cpus", "_gpu_type", "_gpus", "_memory")

    def __init__(self, room: Room, at: float, gpu_type: str | None) -> None:
        self._gpu_type = gpu_type
        self._cpus, self._memory, self._gpus = room.cpus, room.memory, room.free_of(gpu_type)
        for release in room.releases.values():
            if release.at <= at:
                self._cpus += release.cpus
                self._memory += release.memory
                self._gpus += len(release.gpus) if gpu_type is None else release.gpus.count(gpu_type)

    def holds_beside(self, room: Room, other: Resources, mine: Resources) -> bool:
        """True when `mine` would fit then although `other` had started in the room now."""
        enough = self._cpus - other.cpus >= mine.cpus and self._memory - other.memory >= mine.memory
        return enough and self._gpus - self._taken(room, other) >= mine.gpus

    def lose(self, room: Room, other: Resources) -> None:
        """`other` starts in the room now, and is still there then."""
        self._gpus -= self._taken(room, other)
        self._cpus -= other.cpus
        self._memory -= other.memory

    def _taken(self, room: Room, other: Resources) -> int:
        """How many of the GPUs in question `other` would get."""
        if self._gpu_type is None:
            return other.gpus
        return sum(count for name, count in room.choose(other) if name == self._gpu_type)


def rooms_for(wanted: Resources, ends_by: float, fit: Fit, promise: Promise | None) -> list[Room]:
    """Return where `wanted` can start now: best fit on the free nodes, then on promised ones where it harms nobody.

    Fewer rooms than it has nodes when it cannot.
    """
    if promise is None:
        return fit.find(wanted)
    rooms = fit.find(wanted, promise.indexes)
    for room in promise.rooms:
        if len(rooms) == wanted.nodes:
            break
        if promise.admits(room, wanted, ends_by):
            rooms.append(room)
    return rooms


def start_in(rooms: Sequence[Room], job: Waiting, ends_by: float, fit: Fit, promise: Promise | None) -> tuple[Share, ...]:
    """Give `job` what it asks for in these rooms, and return what it got in each."""
    shares = []
    for room in rooms:
        if promise is not None and room.index in promise.indexes:
            promise.note(room, job.resources, ends_by)
        shares.append(Share(node=room.name, devices=fit.take(room, job.id, job.resources, ends_by)))
    return tuple(shares)
