"""What blocked jobs are promised, and what that leaves for others.

A promise says: these nodes, from this moment on, for as long as the job asks for. Whoever starts now on one of its nodes must
be over by then or leave enough beside it. With one promise that is EASY backfill (D. Lifka, "The ANL/IBM SP Scheduling System",
JSSPP 1995); with one for every job it is conservative backfill (A. Mu'alem and D. Feitelson, "Utilization, Predictability,
Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 2001).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carrel.domain.placement import Waiting
from carrel.domain.resources import Resources
from carrel.policy.rooms import Room

_NONE: frozenset[int] = frozenset()


class Promise:
    """What a blocked job is promised: these nodes, from this moment on."""

    __slots__ = ("at", "indexes", "job", "rooms", "until")

    def __init__(self, job: Waiting, at: float, rooms: Sequence[Room], seconds: float) -> None:
        self.job = job
        self.at = at
        #: When it will be over.
        self.until = at + seconds
        self.rooms = rooms
        #: Of the rooms.
        self.indexes = frozenset(room.index for room in rooms)


class Promises:
    """The promises of one placement, in the order of the queue."""

    def __init__(self, most: int = 1) -> None:
        #: How many jobs of one partition get one.
        self.most = most
        self.made: list[Promise] = []
        #: Of the rooms that somebody is promised something in.
        self.indexes = _NONE
        #: These rooms, each once, in the order of the promises.
        self.rooms: list[Room] = []
        self._left: dict[int, list[_Left]] = {}
        self._many: dict[str, int] = {}
        self._by_job: dict[int, Promise] = {}
        #: The id of the first job of each partition.
        self._first: dict[str, int] = {}

    def wants(self, partition: str) -> bool:
        """True when the next blocked job of this partition is to get a promise."""
        return self._many.get(partition, 0) < self.most

    def make(self, promise: Promise) -> None:
        """Promise something that fits beside what is promised already."""
        wanted = promise.job.resources
        for room in promise.rooms:
            here = self._left.setdefault(room.index, [])
            for left in here:
                if promise.at <= left.at < promise.until:
                    left.promise(room, wanted)
            here.append(_Left(room, promise.at, [*self._active(room, promise.at), wanted]))
        self.rooms += [room for room in promise.rooms if room.index not in self.indexes]
        self.indexes |= promise.indexes
        self.made.append(promise)
        partition = promise.job.partition
        self._by_job[promise.job.id] = promise
        self._first.setdefault(partition, promise.job.id)
        self._many[partition] = self._many.get(partition, 0) + 1

    def of(self, job: Waiting) -> Promise | None:
        """Return what `job` is promised, or None."""
        return self._by_job.get(job.id)

    def is_first(self, job: Waiting) -> bool:
        """True when `job` is the first of its partition that something is promised to."""
        return self._first.get(job.partition) == job.id

    def here(self, room: Room) -> list[Promise]:
        """Return the promises that concern `room`."""
        return [promise for promise in self.made if room.index in promise.indexes]

    def moments(self) -> Iterable[float]:
        """When those begin whom something is promised. What starts now and is too long is so for one of them."""
        return (promise.at for promise in self.made)

    def admits(self, room: Room, wanted: Resources, ends_by: float) -> bool:
        """True when `wanted` fits in `room` now, and is over before each promise there begins or leaves enough beside it."""
        if not room.has_free(wanted):
            return False
        taken: dict[str, int] | None = None
        for left in self._left.get(room.index, ()):
            if ends_by > left.at:
                if taken is None:
                    taken = dict(room.choose(wanted))
                if not left.holds_beside(wanted, taken):
                    return False
        return True

    def note(self, room: Room, wanted: Resources, ends_by: float) -> None:
        """Count in a job that is about to start in a `room` with promises and that `admits` let through."""
        taken = dict(room.choose(wanted))
        for left in self._left.get(room.index, ()):
            if ends_by > left.at:
                left.lose(wanted, taken)

    def fits_at(self, room: Room, wanted: Resources, at: float, until: float) -> bool:
        """True when `wanted` fits in `room` from `at` until `until` if every promise is kept."""
        here = self.here(room)
        moments = [at, *(promise.at for promise in here if at < promise.at < until)]
        return all(_Left(room, moment, [*self._active(room, moment), wanted]).enough for moment in moments)

    def _active(self, room: Room, moment: float) -> list[Resources]:
        """What is promised in `room` at a moment."""
        return [promise.job.resources for promise in self.here(room) if promise.at <= moment < promise.until]


class _Left:
    """What will be free in one room at some moment beside what is promised there.

    GPUs are counted by who may have them: those of one type, those with enough memory, all. A promise counts where everything
    that it may have is in; so one for any type counts in the whole alone, and leaves each type to those who ask for it.
    """

    __slots__ = ("_cpus", "_free", "_memory", "_promised", "_spare", "at")

    def __init__(self, room: Room, at: float, promised: Iterable[Resources]) -> None:
        self.at = at
        self._cpus, self._memory = room.cpus, room.memory
        self._free = {name: len(uuids) for name, uuids in room.free.items()}
        for release in room.releases.values():
            if release.at <= at:
                self._cpus += release.cpus
                self._memory += release.memory
                for name in release.gpus:
                    self._free[name] += 1
        self._promised: list[tuple[frozenset[str], int]] = []
        self._spare: dict[frozenset[str], int] = {}
        for wanted in promised:
            self.promise(room, wanted)

    @property
    def enough(self) -> bool:
        """True when nothing is promised that will not be there."""
        return self._cpus >= 0 and self._memory >= 0 and all(spare >= 0 for spare in self._spare.values())

    def promise(self, room: Room, wanted: Resources) -> None:
        """`wanted` is promised too."""
        self._cpus -= wanted.cpus
        self._memory -= wanted.memory
        if not wanted.gpus:
            return
        types = room.suited(wanted)
        if types not in self._spare:
            self._spare[types] = sum(self._free[name] for name in types) - sum(
                gpus for others, gpus in self._promised if others <= types
            )
        self._promised.append((types, wanted.gpus))
        for more in self._spare:
            if types <= more:
                self._spare[more] -= wanted.gpus

    def holds_beside(self, other: Resources, taken: dict[str, int]) -> bool:
        """True when all that is promised is there then although `other` had taken so many GPUs of each type now."""
        if self._cpus < other.cpus or self._memory < other.memory:
            return False
        return all(spare >= sum(count for name, count in taken.items() if name in types) for types, spare in self._spare.items())

    def lose(self, other: Resources, taken: dict[str, int]) -> None:
        """`other` takes so much now, and is still there then."""
        self._cpus -= other.cpus
        self._memory -= other.memory
        for name, count in taken.items():
            self._free[name] -= count
            for types in self._spare:
                if name in types:
                    self._spare[types] -= count
