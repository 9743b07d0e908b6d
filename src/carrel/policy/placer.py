"""Placement for whoever tells of each change: the same decisions as `place`, without looking at everything each time.

`place` sorts the whole queue and goes through all of it. A `Placer` keeps the queue in groups of jobs that are alike, the nodes
sorted by what is free, and what every holder holds; a cycle looks at the first job of those groups alone that could have found
room since the last one. That both decide the same is a property that the tests check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from carrel.domain.node import Node
from carrel.domain.placement import Holding, Start, Waiting
from carrel.domain.qos import QoS
from carrel.domain.resources import Resources
from carrel.policy.backfill import Promise, Slot, rooms_for, start_in
from carrel.policy.first_fits import FirstFits
from carrel.policy.fit import Fit
from carrel.policy.limits import Ledger, Limit, Limits
from carrel.policy.line import Bulk, Group, Kind, kind_of
from carrel.policy.order import Order
from carrel.policy.rooms import Room, rooms_of

#: Kinds of jobs whose first fit is kept up to date: that of the first in line, and of those that were it a moment ago.
_FIRST_FITS = 16


class Placer:
    """The queue, the nodes and who holds what. Not thread-safe."""

    def __init__(self) -> None:
        self._qos: Mapping[str, QoS] = {}
        self._order = Order({}, {}, age_weight=0.0, share_weight=0.0, size_weight=0.0)
        self._nodes: tuple[Sequence[Node], frozenset[str]] = ((), frozenset())
        #: The group of each job that is in line, or None while it pauses.
        self._waiting: dict[int, tuple[Waiting, Group | None]] = {}
        self._paused: list[tuple[float, int]] = []
        self._holding: dict[int, Holding] = {}
        self._bulks: dict[Kind, Bulk] = {}
        self._groups: dict[tuple[str, str, str, Resources], Group] = {}
        #: The jobs that the last cycle promised a place to, first in line first.
        self.promised: Sequence[Waiting] = ()
        self._set_nodes((), frozenset())
        self._set_limits()

    # ---- what changes

    def rules(self, qos: Mapping[str, QoS], order: Order) -> None:
        """These classes of service and this order are in force from now on."""
        renewed = qos != self._qos
        self._qos, self._order = qos, order
        if renewed:
            self._set_limits()
            self._regroup()
            return
        for bulk in self._bulks.values():
            bulk.entries.clear()
        for group in self._groups.values():
            group.reorder(order.offset(*group.who, group.resources.total_gpus))
            group.enter()
        self._parked.clear()

    def nodes(self, nodes: Sequence[Node], withheld: frozenset[str] = frozenset()) -> None:
        """These are the nodes from now on, and the devices that nobody may be given."""
        if (nodes, withheld) != self._nodes:
            self._set_nodes(nodes, withheld)

    def wait(self, job: Waiting) -> None:
        """`job` is in line, whatever it was before."""
        self.forget(job.id)
        self._waiting[job.id] = (job, None)
        if job.not_before > 0:
            heappush(self._paused, (job.not_before, job.id))
        else:
            self._enter(job)

    def hold(self, held: Holding) -> None:
        """A job holds this, whatever it was before."""
        before = self._holding.get(held.id)
        if before is not None and (before.shares, before.resources) == (held.shares, held.resources):
            self._holding[held.id] = held
            for room, _ in self._places(held) if before.ends_by != held.ends_by else ():
                room.releases[held.id] = room.releases[held.id]._replace(at=held.ends_by)
                self._changed(room)
            return
        self.forget(held.id)
        self._holding[held.id] = held
        for room, devices in self._places(held):
            self._fit.hold(room, held, devices)
            self._changed(room)
        limits = self._limits_of(held.owner, held.account, held.qos)
        if limits is not None:
            limits.charge(held.id, held.resources.total_gpus, held.ends_by)
            self._free_parked(limits)

    def forget(self, job_id: int) -> None:
        """The job is over, or was never there."""
        waiting = self._waiting.pop(job_id, None)
        if waiting is not None and waiting[1] is not None:
            self._leave(waiting[1], job_id)
        held = self._holding.pop(job_id, None)
        if held is None:
            return
        for room, devices in self._places(held):
            self._fit.give_back(room, job_id, devices)
            self._changed(room)
            for bulk in self._bulks.values():
                if bulk.full and room.has_free(bulk.wanted):
                    bulk.full = False
        limits = self._limits_of(held.owner, held.account, held.qos)
        if limits is not None:
            limits.discharge(job_id)
            self._free_parked(limits)

    # ---- the decision

    def place(self, now: float) -> Sequence[Start]:
        """Return what starts at `now` (Unix seconds), in the order of the queue.

        What is returned counts as held from now on, until somebody says otherwise: `hold` when it has happened, `wait` or
        `forget` when it has not.
        """
        self._wake(now)
        cycle = _Cycle(self, now)
        cycle.run()
        self.promised = cycle.promised
        return cycle.starts

    def _wake(self, now: float) -> None:
        while self._paused and self._paused[0][0] <= now:
            at, job_id = heappop(self._paused)
            job, group = self._waiting.get(job_id, (None, None))
            if job is not None and group is None and job.not_before == at:
                self._enter(job)

    # ---- the line

    def _enter(self, job: Waiting) -> None:
        alike = (job.owner, job.account, job.qos, job.resources)
        group = self._groups.get(alike)
        if group is None:
            group = self._groups[alike] = self._make_group(*alike)
        self._waiting[job.id] = (job, group)
        if group.add(self._order.late(job), job):
            group.enter()

    def _make_group(self, owner: str, account: str, qos: str, resources: Resources) -> Group:
        key = kind_of(resources)
        bulk = self._bulks.get(key)
        if bulk is None:
            bulk = self._bulks[key] = Bulk(resources)
        bulk.join(resources.time)
        limits = self._limits_of(owner, account, qos)
        offset = self._order.offset(owner, account, qos, resources.total_gpus)
        group = Group(bulk, resources, limits, (owner, account, qos), offset)
        for limit in limits.parts if limits is not None else ():
            self._members[limit][group] = None
        return group

    def _leave(self, group: Group, job_id: int) -> None:
        """A job is not in line any more."""
        if group.remove(job_id):
            group.enter()
            if group.key is None:
                self._drop(group)
        if group.limits is not None:
            self._free_parked(group.limits)

    def _drop(self, group: Group) -> None:
        """Nobody is in the group any more."""
        wanted = group.resources
        del self._groups[*group.who, wanted]
        for limit in group.limits.parts if group.limits is not None else ():
            del self._members[limit][group]
        group.bulk.part(wanted.time)
        if not group.bulk.times:
            del self._bulks[kind_of(wanted)]
            self._first_fits.pop(kind_of(wanted), None)

    def _regroup(self) -> None:
        self._groups.clear()
        self._bulks.clear()
        self._first_fits.clear()
        for job, group in list(self._waiting.values()):
            if group is not None:
                self._enter(job)

    # ---- limits

    def _set_limits(self) -> None:
        self._ledger = Ledger(self._qos, self._holding.values())
        self._members: defaultdict[Limit, dict[Group, None]] = defaultdict(dict)
        self._parked: dict[Limit, list[Group]] = {}
        #: The limits of the accounts that a user has ever worked for: what the user holds decides who stands before others there.
        self._accounts: defaultdict[Limit, set[Limit]] = defaultdict(set)

    def _limits_of(self, owner: str, account: str, qos: str) -> Limits | None:
        limits = self._ledger.of(owner, account, qos)
        if limits is not None and len(limits.parts) > 1:
            self._accounts[limits.parts[0]].update(limits.parts[1:])
        return limits

    def _free_parked(self, limits: Limits) -> None:
        """What these limits refused may be let in now."""
        if not self._parked:
            return
        for limit in {*limits.parts, *self._accounts.get(limits.parts[0], ())}:
            for group in self._parked.pop(limit, ()):
                if group.entry is None:
                    group.enter()

    def ahead(self, limit: Limit, group: Group) -> int:
        """Return `Limit.ahead` for the first job of `group`: the largest that waits before it under the same limit."""
        most, key = 0, group.key
        for other in self._members[limit]:
            gpus = other.resources.total_gpus
            if gpus > most and other.key is not None and key is not None and other.key < key:
                inner = other.limits.inside(limit) if other.limits is not None else ()
                if limit.counts(inner, gpus):
                    most = gpus
        return most

    def park(self, group: Group, limit: Limit) -> None:
        """`limit` refuses the group's first job, whatever room there is."""
        group.entry = None
        self._parked.setdefault(limit, []).append(group)

    # ---- rooms

    def _set_nodes(self, nodes: Sequence[Node], withheld: frozenset[str]) -> None:
        self._nodes = (nodes, withheld)
        rooms = rooms_of(nodes, self._holding.values(), withheld)
        self._by_name = {room.name: room for room in rooms}
        self._fit = Fit(rooms)
        self._rooms = rooms
        self._first_fits: dict[Kind, FirstFits] = {}
        for bulk in self._bulks.values():
            bulk.full = False

    def _changed(self, room: Room) -> None:
        for fits in self._first_fits.values():
            fits.changed(room)

    def _places(self, held: Holding) -> Iterable[tuple[Room, tuple[str, ...]]]:
        """The rooms in which something is held, with the devices."""
        for share in held.shares:
            room = self._by_name.get(share.node)
            if room is not None:
                yield room, share.devices

    def earliest(self, wanted: Resources, now: float) -> Slot | None:
        """Return `backfill.earliest` of `wanted`."""
        kind = kind_of(wanted)
        fits = self._first_fits.pop(kind, None) or FirstFits(wanted, self._rooms)
        self._first_fits[kind] = fits  # the one that was asked last is at the end
        if len(self._first_fits) > _FIRST_FITS:
            del self._first_fits[next(iter(self._first_fits))]
        return fits.earliest(now)

    def rooms_for(self, wanted: Resources, ends_by: float, promise: Promise | None) -> list[Room]:
        """Return `backfill.rooms_for`."""
        return rooms_for(wanted, ends_by, self._fit, promise)

    def has_free(self, wanted: Resources, promise: Promise) -> int:
        """Return how many rooms that are not promised have so much free; no more than are asked for."""
        return len(self._fit.find(wanted, promise.indexes))

    def start(self, group: Group, rooms: Sequence[Room], ends_by: float, promise: Promise | None) -> Start:
        """The group's first job starts in these rooms."""
        job, wanted, limits = group.head, group.resources, group.limits
        first, *others = start_in(rooms, job, ends_by, self._fit, promise)
        for room in rooms:
            self._changed(room)
        del self._waiting[job.id]
        self._holding[job.id] = Holding(
            id=job.id,
            owner=job.owner,
            qos=job.qos,
            resources=wanted,
            node=first.node,
            devices=first.devices,
            others=tuple(others),
            ends_by=ends_by,
            account=job.account,
        )
        if limits is not None:
            limits.charge(job.id, wanted.total_gpus, ends_by)
        self._leave(group, job.id)
        return Start(job_id=job.id, node=first.node, devices=first.devices, others=tuple(others))

    def line(self) -> Iterable[Bulk]:
        """Everything that waits."""
        return self._bulks.values()


class _Cycle:
    """One placement."""

    def __init__(self, placer: Placer, now: float) -> None:
        self.starts: list[Start] = []
        self._placer = placer
        self._now = now
        self._promised: Promise | None = None
        #: The limits in which the promise keeps room.
        self._claims: Limits | None = None
        #: Bulks in which there is room for jobs alone that end before the promise begins.
        self._short_only: set[Bulk] = set()
        #: Groups that nothing can be done for in this cycle alone.
        self._aside: list[Group] = []

    def run(self) -> None:
        """Go through the bulks, always on with the one whose first job is first in line."""
        line = [(entry[0], entry[1], bulk.number, bulk) for bulk in self._placer.line() if (entry := bulk.first()) is not None]
        heapify(line)
        while line:
            late, job_id, number, bulk = line[0]
            entry = bulk.first()
            if entry is None or (bulk.full and self._promised is not None):
                heappop(line)
            elif (entry[0], entry[1]) != (late, job_id):
                heapreplace(line, (entry[0], entry[1], number, bulk))
            elif (bulk in self._short_only and not self._is_short(min(bulk.times))) or not self._consider(entry[3], bulk):
                heappop(line)
        for group in self._aside:
            if group.entry is None:
                group.enter()
        if self._claims is not None:
            self._claims.unclaim()

    @property
    def promised(self) -> Sequence[Waiting]:
        """Those that are to start later, at a moment that is kept for them."""
        return () if self._reservation is None else (self._reservation.job,)

    def _consider(self, group: Group, bulk: Bulk) -> bool:
        """Start the group's first job, or put the group aside. False when there is no room for anybody of the bulk."""
        ends_by = self._now + group.resources.time
        if bulk in self._short_only and not self._is_short(group.resources.time):
            self._put_aside(group)
            return True
        refusing = self._refusing(group, ends_by)
        if refusing is not None:
            if refusing.claimed_by is None:
                self._placer.park(group, refusing)
            else:
                self._put_aside(group)
            return True
        wanted, promised = group.resources, self._promised
        if not bulk.full:
            rooms = self._placer.rooms_for(wanted, ends_by, promised)
            if len(rooms) == wanted.nodes:
                self.starts.append(self._placer.start(group, rooms, ends_by, promised))
                return True
        if promised is None:
            bulk.full = True
            self._promise(group)
            return False
        kept = sum(room.has_free(wanted) for room in promised.rooms)
        if kept == 0 or self._placer.has_free(wanted, promised) + kept < wanted.nodes:
            bulk.full = True
            return False
        self._short_only.add(bulk)
        self._put_aside(group)
        return True

    def _is_short(self, seconds: int) -> bool:
        """True when a job of so many seconds ends before the promise begins."""
        return self._promised is None or self._now + seconds <= self._promised.at

    def _refusing(self, group: Group, ends_by: float) -> Limit | None:
        limits, gpus = group.limits, group.resources.total_gpus
        for limit in limits.parts if limits is not None else ():
            ahead = self._placer.ahead(limit, group) if gpus and limit.limits_gpus else 0
            if limit.refuses(gpus, ends_by, ahead) is not None:
                return limit
        return None

    def _promise(self, group: Group) -> None:
        slot = self._placer.earliest(group.resources, self._now)
        if slot is not None:
            self._promised = Promise(group.head, *slot)
            self._claims = group.limits
            if self._claims is not None:
                self._claims.claim(group.head, self._promised.at)

    def _put_aside(self, group: Group) -> None:
        group.entry = None
        self._aside.append(group)
