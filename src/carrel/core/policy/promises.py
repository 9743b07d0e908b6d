"""What blocked jobs are promised, and what that leaves for others.

A promise says: these nodes, from this moment on, for as long as the job asks for. A job that starts now on one of its nodes must
be over by then or leave enough beside it. With one promise that is EASY backfill (D. Lifka, "The ANL/IBM SP Scheduling System",
JSSPP 1995); with one for every job it is conservative backfill (A. Mu'alem and D. Feitelson, "Utilization, Predictability,
Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 2001).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from carrel.core.domain.placement import Waiting
from carrel.core.domain.resources import Resources
from carrel.core.policy.node_capacity import NodeCapacity
from carrel.core.policy.profile import Left, Opening, Profile

_NONE: frozenset[int] = frozenset()


class Promise:
    """What a blocked job is promised: these nodes, from this moment on."""

    __slots__ = ("at", "indexes", "job", "rooms", "until")

    def __init__(self, job: Waiting, at: float, rooms: Sequence[NodeCapacity], seconds: float) -> None:
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
        self.rooms: list[NodeCapacity] = []
        self._left: dict[int, list[Left]] = {}
        #: What will be left in rooms that somebody asked about.
        self._profiles: dict[int, Profile] = {}
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
            here.append(Left(room, promise.at, [*self._active(room, promise.at), wanted]))
            if room.index in self._profiles:
                self._profiles[room.index].promise(wanted, promise.at, promise.until)
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

    def here(self, room: NodeCapacity) -> list[Promise]:
        """Return the promises that concern `room`."""
        return [promise for promise in self.made if room.index in promise.indexes]

    def admits(self, room: NodeCapacity, wanted: Resources, ends_by: float) -> bool:
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

    def note(self, room: NodeCapacity, wanted: Resources, ends_by: float) -> None:
        """Count in a job that is about to start in a `room` with promises and that `admits` let through."""
        self._profiles.pop(room.index, None)
        taken = dict(room.choose(wanted))
        for left in self._left.get(room.index, ()):
            if ends_by > left.at:
                left.lose(wanted, taken)

    def openings(self, room: NodeCapacity, wanted: Resources, seconds: float, now: float) -> Sequence[Opening]:
        """Return when `wanted` may start in `room` if every promise is kept, in order."""
        profile = self._profiles.get(room.index)
        if profile is None:
            profile = self._profiles[room.index] = Profile(room, now)
            for promise in self.here(room):
                profile.promise(promise.job.resources, promise.at, promise.until)
        return profile.openings(wanted, seconds)

    def _active(self, room: NodeCapacity, moment: float) -> list[Resources]:
        """What is promised in `room` at a moment."""
        return [promise.job.resources for promise in self.here(room) if promise.at <= moment < promise.until]


_moment = attrgetter("at")
