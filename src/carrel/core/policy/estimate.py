"""When a waiting job should start: list scheduling, in the order of the queue, over pools of what is limited.

A pool says how many units of one thing (GPUs of one type, cpus, memory, places within one user's limit) are free from
which moment on, over all nodes together. A job starts when every pool that it needs has enough; its units come back at
its walltime. Walltimes make the estimate late (jobs end sooner, and later jobs are not moved into gaps), and adding up
nodes makes it early in a lab of many nodes (what is free may lie on several). `docs/scheduling.md` says so to users.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nsmallest
from math import inf, isfinite

from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes, Place
from carrel.core.policy.backfill import earliest
from carrel.core.policy.limits import CODES, GPU_CODES, Limit
from carrel.core.policy.node_capacity import NodeCapacity
from carrel.core.policy.situation import PRIORITY, UNAVAILABLE, NotStarted, Situation
from carrel.core.policy.walk import INVALID_QOS, PARTITION_DOWN


class Pool:
    """Units of one thing, by the moment from which they are free."""

    __slots__ = ("_moments", "_size", "_units")

    def __init__(self, size: int, used: Iterable[tuple[float, int]], now: float) -> None:
        """`used` are the units that come back later, with the moment; what exceeds `size` never does."""
        self._size = size
        returns = sorted(used)
        free = size - sum(units for _, units in returns)
        self._units: dict[float, int] = {}
        self._moments: list[float] = []
        self.put(max(free, 0), now)
        surplus = max(-free, 0)
        for moment, units in returns:
            eaten = min(surplus, units)
            surplus -= eaten
            self.put(units - eaten, moment)

    def put(self, units: int, at: float) -> None:
        """`units` become free `at` a moment."""
        if units == 0:
            return
        if at in self._units:
            self._units[at] += units
        else:
            self._units[at] = units
            insort(self._moments, at)

    def when(self, units: int) -> float:
        """Return the first moment at which `units` are free together, or infinity."""
        if units > self._size:
            return inf
        if units == 0:
            return -inf
        for moment in self._moments:
            units -= self._units[moment]
            if units <= 0:
                return moment
        return inf

    def take(self, units: int, at: float) -> None:
        """Use `units` from `at` on: those that became free last, so that older gaps stay for others."""
        end = place = bisect_right(self._moments, at)
        while units:
            place -= 1
            moment = self._moments[place]
            here = self._units[moment]
            if here > units:
                self._units[moment] = here - units
                place += 1
                break
            units -= here
            del self._units[moment]
        del self._moments[place:end]


class _Part:
    """The pools of one partition. Nodes that are in several are counted in each."""

    def __init__(self, rooms: Sequence[NodeCapacity], now: float) -> None:
        self._rooms = rooms
        releases = [release for room in rooms for release in room.releases.values()]
        self.cpus = Pool(sum(room.all_cpus for room in rooms), [(r.at, r.cpus) for r in releases], now)
        self.memory = Pool(sum(room.all_memory for room in rooms), [(r.at, r.memory) for r in releases], now)
        self._gpus = {
            name: Pool(
                sum(room.all_gpus.get(name, 0) for room in rooms),
                [(release.at, release.gpus.count(name)) for release in releases if name in release.gpus],
                now,
            )
            for name in sorted({name for room in rooms for name in room.all_gpus})
        }

    def gpu_pool(self, wanted: Resources) -> Pool | None:
        """Return the pool of the type that is free first; None when only devices of several types together are enough."""
        if wanted.gpu_type is not None:
            return self._gpus.get(wanted.gpu_type)
        suited = {name for room in self._rooms for name in room.suited(wanted)} if wanted.gpu_memory else set(self._gpus)
        if len(suited) == 1:
            return self._gpus[suited.pop()]
        moment, name = min(((self._gpus[name].when(wanted.total_gpus), name) for name in suited), default=(inf, ""))
        return self._gpus[name] if isfinite(moment) else None


class ListSchedule:
    """The pools of one placement, after its starts."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._now = now = situation.outcome.now
        moments = (release.at for room in situation.rooms for release in room.releases.values())
        self._next_release = max(now, min(moments, default=now))
        self._parts: dict[Place, _Part] = {}
        self._limits: dict[Limit, list[tuple[Pool, bool]]] = {}
        #: Start of the last job that a user's GPU limit held back: the next of theirs does not overtake it.
        self._last: dict[Limit, float] = {}
        self._floors: dict[tuple[str | None, int, int, int, Place], float] = {}

    def starts(self) -> Iterator[float | None]:
        """Yield the estimated start of every held job, in the order of the queue; None where nobody can say.

        The estimate of a job needs those ahead of it only, so a caller that wants the first few need not wait for the rest.
        """
        for place, held in enumerate(self._situation.held):
            start = self._start(held)
            promise = self._situation.promise(held.job) if place == 0 else None
            # Nobody is ahead of it, held back or not: the promise is exact.
            yield start if promise is None else promise.at

    def _start(self, held: NotStarted) -> float | None:
        code = self._situation.code(held)
        if code in (UNAVAILABLE, INVALID_QOS, PARTITION_DOWN) or not self._situation.possible(held.job):
            return None
        pools = self._pools(held)
        start = self._floor(held, code)
        for pool, units in pools:
            moment = pool.when(units)
            if moment > start:
                start = moment
        start = self._open(held, start)
        if not isfinite(start):
            return None
        for pool, units in pools:
            if units:
                pool.take(units, start)
                pool.put(units, start + held.job.longest)
        if held.limit is not None and code in GPU_CODES:
            limit = held.limit.of_code(code)
            if limit is not None:
                self._last[limit] = start
        return start

    def _floor(self, held: NotStarted, code: str) -> float:
        """Return the moment before which the job cannot start, with any pools."""
        promise, wanted = self._situation.promise(held.job), held.job.resources
        if promise is not None:
            return promise.at
        floor = max(self._now, held.job.not_before)
        if code == PRIORITY:
            allowed_nodes = self._situation.allowed_nodes(held.job)
            floor = max(floor, self._next_room(allowed_nodes), self._gpu_floor(wanted, allowed_nodes))
        elif code in CODES and held.limit is not None:
            limit = held.limit.of_code(code)
            floor = max(floor, self._last.get(limit, floor) if limit is not None else floor)
        return floor

    def _next_room(self, allowed_nodes: AllowedNodes) -> float:
        """Return when somebody gives something back, or a window is over."""
        ends = (window.end for windows in allowed_nodes.windows.values() for window in windows if window.end > self._now)
        return min(self._next_release, min(ends, default=inf))

    def _open(self, held: NotStarted, at: float) -> float:
        """Return the first moment from `at` on that is free of windows, on as many nodes as the job needs."""
        wanted, allowed_nodes = held.job.resources, self._situation.allowed_nodes(held.job)
        if not allowed_nodes.windows or not isfinite(at):
            return at
        able = (room.index for room in allowed_nodes.rooms if room.could_hold(wanted))
        return nsmallest(wanted.nodes, (allowed_nodes.opens(index, at, held.job.longest) for index in able))[-1]

    def _gpu_floor(self, wanted: Resources, allowed_nodes: AllowedNodes) -> float:
        """Return when so many GPUs of that type are first free on one node."""
        if wanted.gpus == 0:
            return self._now
        key = (wanted.gpu_type, wanted.gpu_memory, wanted.gpus, wanted.nodes, allowed_nodes.place)
        floor = self._floors.get(key)
        if floor is None:
            bare = replace(wanted, cpus=1, memory=1024**2)
            found = earliest(bare, allowed_nodes.rooms, self._now)
            floor = self._floors[key] = found[0] if found else inf
        return floor

    def _pools(self, held: NotStarted) -> list[tuple[Pool, int]]:
        wanted = held.job.resources
        allowed_nodes = self._situation.allowed_nodes(held.job)
        part = self._part(allowed_nodes)
        pools = [(part.cpus, wanted.cpus * wanted.nodes), (part.memory, wanted.memory * wanted.nodes)]
        if allowed_nodes.cluster:
            pools = []  # what is free there is not known
        elif wanted.gpus:
            gpus = part.gpu_pool(wanted)
            if gpus is not None:
                pools.append((gpus, wanted.total_gpus))
        if held.limit is not None:
            for limit in held.limit.parts:
                pools += [(pool, wanted.total_gpus if in_gpus else 1) for pool, in_gpus in self._limit_pools(limit)]
        return pools

    def _part(self, allowed_nodes: AllowedNodes) -> _Part:
        part = self._parts.get(allowed_nodes.place)
        if part is None:
            part = self._parts[allowed_nodes.place] = _Part(allowed_nodes.rooms, self._now)
        return part

    def _limit_pools(self, limit: Limit) -> list[tuple[Pool, bool]]:
        """Return the pools of a user's limits, each with whether it counts GPUs (or jobs)."""
        pools = self._limits.get(limit)
        if pools is None:
            pools = []
            holds = limit.holds.values()
            if isfinite(limit.max_jobs):
                pools.append((Pool(int(limit.max_jobs), [(at, 1) for at, _ in holds], self._now), False))
            if isfinite(limit.max_gpus):
                pools.append((Pool(int(limit.max_gpus), [(at, gpus) for at, gpus in holds if gpus], self._now), True))
            self._limits[limit] = pools
        return pools
