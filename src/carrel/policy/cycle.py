"""One placement of a `Placer`: what starts now, and who is promised what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Protocol

from carrel.domain.placement import Start
from carrel.policy.backfill import Slot
from carrel.policy.limits import Limit, Limits
from carrel.policy.line import Bulk, Group
from carrel.policy.promises import Promise, Promises
from carrel.policy.rooms import Room


class Line(Protocol):
    """What a cycle needs of the placer."""

    def line(self) -> Iterable[Bulk]:
        """Return everything that waits."""
        ...

    def ahead(self, limit: Limit, group: Group) -> int:
        """Return the GPUs of the largest job before the group's first that waits under the same limit."""
        ...

    def park(self, group: Group, limit: Limit) -> None:
        """`limit` refuses the group's first job, whatever room there is."""
        ...

    def rooms_for(self, group: Group, now: float, promises: Promises) -> list[Room]:
        """Return where the group's first job can start now; fewer rooms than it has nodes when it cannot."""
        ...

    def is_full(self, bulk: Bulk) -> bool:
        """True when there is no room for anybody of the bulk, however short."""
        ...

    def slot(self, group: Group, promises: Promises, now: float) -> Slot | None:
        """Return when and where the group's jobs first fit beside `promises`."""
        ...

    def start(self, group: Group, rooms: Sequence[Room], now: float, promises: Promises) -> Start:
        """The group's first job starts in these rooms."""
        ...


class Cycle:
    """One placement."""

    def __init__(self, placer: Line, now: float, promises: Promises) -> None:
        self.starts: list[Start] = []
        self.promises = promises
        self._placer = placer
        self._now = now
        #: The limits in which promises keep room.
        self._claims: list[Limits] = []
        #: Bulks in which there is room for jobs alone that are over by one of these two: as they are expected to run, and by
        #: their walltime.
        self._too_late: dict[Bulk, list[tuple[float, float]]] = {}
        #: Groups that nothing can be done for in this cycle alone.
        self._aside: list[Group] = []

    def run(self) -> None:
        """Go through the bulks, always on with the one whose first job is first in line."""
        line = [(entry[0], entry[1], bulk.number, bulk) for bulk in self._placer.line() if (entry := bulk.first()) is not None]
        heapify(line)
        while line:
            late, job_id, number, bulk = line[0]
            entry = bulk.first()
            if entry is None or (self._is_shut(bulk) and not self._promising(bulk)):
                heappop(line)
            elif (entry[0], entry[1]) != (late, job_id):
                heapreplace(line, (entry[0], entry[1], number, bulk))
            elif not self._consider(entry[3], bulk):
                heappop(line)
        for group in self._aside:
            if group.passed or group.entry is None:
                group.passed = 0
                group.enter()
        for limits in self._claims:
            limits.unclaim()

    def _promising(self, bulk: Bulk) -> bool:
        return self.promises.wants(bulk.realm.partition)

    def _is_shut(self, bulk: Bulk) -> bool:
        """True when there is no room for anybody of the bulk."""
        if bulk.full:
            return True
        too_late = self._too_late.get(bulk)
        if too_late is None:
            return False
        if not bulk.realm.windows:
            return self._now + min(bulk.times)[0] > min(too_late)[0]
        return all(self._is_late(bulk, seconds, walltime) for seconds, walltime in bulk.times)

    def _is_late(self, bulk: Bulk, seconds: float, longest: int) -> bool:
        """True when somebody has found no room who would be over no later than a job of so many seconds."""
        expected, latest = self._now + seconds, self._now + longest
        return any(expected > one and latest > other for one, other in self._too_late.get(bulk, ()))

    def _consider(self, group: Group, bulk: Bulk) -> bool:
        """Start the group's first job, promise it something, or put the group aside. False when the bulk is done with."""
        ends_by = self._now + group.seconds
        shut = bulk.full or (bulk in self._too_late and self._is_late(bulk, group.seconds, group.longest))
        if shut and not bulk.full and not self._promising(bulk):
            self._put_aside(group)
            return True
        refusing = self._refusing(group)
        if refusing is not None:
            if refusing.claims:
                self._put_aside(group)
            else:
                self._placer.park(group, refusing)
            return True
        if bulk.realm.cluster:
            self.starts.append(self._placer.start(group, (), ends_by, self.promises))
            return True
        if not shut:
            rooms = self._placer.rooms_for(group, self._now, self.promises)
            if len(rooms) == group.resources.nodes:
                self.starts.append(self._placer.start(group, rooms, self._now, self.promises))
                return True
            self._close(group, bulk)
        if self._promising(bulk):
            if not self._promise(group):
                if not bulk.realm.windows:
                    return False  # no node that takes jobs is large enough, for none of them
            elif self._promising(bulk):
                # The next one of the group may be promised something too, when its turn comes.
                group.passed += 1
                self._aside.append(group)
                group.enter()
                return True
        if bulk.full and not self._promising(bulk):
            return False
        self._put_aside(group)
        return True

    def _close(self, group: Group, bulk: Bulk) -> None:
        """There is no room for the group's first job: remember for whom there is none either."""
        untouched = not self.promises.indexes and not bulk.realm.windows
        if untouched or self._placer.is_full(bulk):
            bulk.full = True
            return
        now = self._now
        promised = max((at for at in self.promises.moments() if at < now + group.seconds), default=-inf)
        shut = max((end for end in bulk.realm.last_ends(now) if end < now + group.longest), default=-inf)
        self._too_late.setdefault(bulk, []).append((promised, shut))

    def _refusing(self, group: Group) -> Limit | None:
        limits, gpus = group.limits, group.resources.total_gpus
        for limit in limits.parts if limits is not None else ():
            ahead = self._placer.ahead(limit, group) if gpus and limit.limits_gpus else 0
            if limit.refuses(gpus, ahead) is not None:
                return limit
        return None

    def _promise(self, group: Group) -> bool:
        """Promise the group's first job when and where it first fits. False when it never does."""
        slot = self._placer.slot(group, self.promises, self._now)
        if slot is None:
            return False
        self.promises.make(Promise(group.head, *slot, group.seconds))
        if group.limits is not None:
            group.limits.claim(group.head)
            self._claims.append(group.limits)
        return True

    def _put_aside(self, group: Group) -> None:
        group.entry = None
        self._aside.append(group)
