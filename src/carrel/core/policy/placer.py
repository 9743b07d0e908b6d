"""Which waiting job starts now, on which node, with which devices.

The rules, with an example, are in `docs/scheduling.md`. First in line first: a job that its own limit or its own pause holds back
is passed over; one that fits starts; the first of each partition that does not fit gets a promise (or the first few), and from
then on a job starts only where promises are kept. In a partition of a Slurm cluster the limits alone hold a job back: what passes
them is handed over, and where and when it runs is Slurm's decision.

A `Placer` is told of each change. It keeps the queue in groups of jobs that are alike, the nodes sorted by what is free, and what
every holder holds; groups are found by their place in line, by what they need, and by the limit that keeps them out. A cycle
looks at those alone that can start. That it decides as one walk through the whole queue would is a property that the tests check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from carrel.core.domain.node import Node, NodePart
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Holding, Snapshot, Start, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.submit_limits import SubmitLimit, SubmitScope
from carrel.core.policy.allowed_nodes import NOWHERE, AllowedNodesByOwner
from carrel.core.policy.backfill import Slot, earliest_beside, is_plain, start_in
from carrel.core.policy.cycle import Cycle
from carrel.core.policy.first_fits import FirstFits
from carrel.core.policy.fit import Fit
from carrel.core.policy.limit_queue import LimitQueue
from carrel.core.policy.limit_queues import LimitQueues
from carrel.core.policy.line import Alike, Group, Kind, Lines, Parked, kind_of
from carrel.core.policy.node_capacity import NodeCapacity, rooms_of
from carrel.core.policy.order import Order, order_of
from carrel.core.policy.outcome import Outcome
from carrel.core.policy.promises import Promise, Promises

#: Kinds of jobs whose first fit is kept up to date: that of the first in line, and of those that were it a moment ago.
_FIRST_FITS = 16


class Placer:
    """The queue, the nodes and who holds what. Not thread-safe."""

    def __init__(self) -> None:
        self._qos: Mapping[str, QoS] = {}
        self._order = Order({}, {}, age_weight=0.0, share_weight=0.0, size_weight=0.0)
        self._nodes: tuple[Sequence[Node], frozenset[str], Mapping[str, int]] = ((), frozenset(), {})
        #: The group of each job that is in line, or None while it pauses.
        self._waiting: dict[int, tuple[Waiting, Group | None]] = {}
        self._paused: list[tuple[float, int]] = []
        self._holding: dict[int, Holding] = {}
        self.lines = Lines()
        #: Groups that fit on none of the nodes.
        self._stranded: dict[Group, None] = {}
        self._groups: dict[Alike, Group] = {}
        self._partitions: Mapping[str, Partition] = {}
        self._reservations: Sequence[Reservation] = ()
        self.limits = LimitQueues()
        self._most = 1
        #: While a placement is made, the key of the job that started last: it does not go back to those before it, who have been
        #: passed over. They are let in again when it is over.
        self._walked: tuple[float, int] | None = None
        self._passed_by: list[Group] = []
        self._first_fits: dict[Kind, FirstFits] = {}
        self.fit = Fit(())
        self._allowed_by_owner = AllowedNodesByOwner((), {}, ())
        self._promised = Promises()
        self._set_nodes((), frozenset(), {})

    @classmethod
    def of(cls, picture: Snapshot, order: Order | None = None) -> Placer:
        """Return a placer that has been told of all that is in a picture, but for `Snapshot.submit_limits`.

        The weights of the picture make the order, where none is given.
        """
        placer = cls()
        placer.nodes(picture.nodes, picture.withheld, picture.moves)
        placer.rules(picture.qos, order or order_of(picture, picture.standing), picture.partitions, promises=picture.promises)
        placer.reservations(picture.reservations)
        for held in picture.holding:
            placer.hold(held)
        for job in picture.waiting:
            placer.wait(job)
        return placer

    # ---- what changes

    def rules(
        self, qos: Mapping[str, QoS], order: Order, partitions: Mapping[str, Partition] | None = None, *, promises: int = 1
    ) -> None:
        """These classes of service, this order and these partitions are in force from now on.

        So many blocked jobs of each partition are promised a start.
        """
        partitions = partitions or {}
        moved, renewed = partitions != self._partitions, qos != self._qos
        self._qos, self._order, self._partitions, self._most = qos, order, partitions, promises
        if renewed or moved:
            if moved:
                self._set_realms()
            self._regroup()
            return
        self._reorder()

    def nodes(
        self, nodes: Sequence[Node], withheld: frozenset[str] = frozenset(), moves: Mapping[str, int] | None = None
    ) -> None:
        """These are the nodes from now on, the devices that nobody may be given, and what moves first off the others."""
        moves = moves or {}
        if (nodes, withheld, moves) != self._nodes:
            self._set_nodes(nodes, withheld, moves)

    def reservations(self, reservations: Sequence[Reservation]) -> None:
        """These windows are kept for some people from now on."""
        if tuple(reservations) != tuple(self._reservations):
            self._reservations = tuple(reservations)
            self._set_realms()
            self._regroup()

    def refused(self, scope: SubmitScope, code: str, words: str) -> None:
        """Slurm has refused a job of this scope: no more of its jobs are handed over than are there now."""
        if not self.limits.knows(scope):
            self.limits.know(scope, SubmitLimit(code, words, 0))
            self._regroup()
        self.limits.refused(scope, code, words)

    def next_change(self, now: float) -> float | None:
        """Return when time alone changes where somebody may run: the first begin or end of a window after `now`."""
        return self._allowed_by_owner.next_change(now)

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
            for room, _ in self._places(held) if before.over_by != held.over_by else ():
                room.releases[held.id] = room.releases[held.id]._replace(at=held.over_by)
                self._changed(room)
            return
        self.forget(held.id)
        self._holding[held.id] = held
        for room, devices in self._places(held):
            self.fit.hold(room, held, devices)
            self._changed(room)
        self.limits.charge(held)

    def forget(self, job_id: int) -> None:
        """The job is over, or was never there."""
        waiting = self._waiting.pop(job_id, None)
        if waiting is not None and waiting[1] is not None:
            self._leave(waiting[1], job_id)
        held = self._holding.pop(job_id, None)
        if held is None:
            return
        for room, devices in self._places(held):
            self.fit.give_back(room, job_id, devices)
            self._changed(room)
        self.limits.discharge(held)

    # ---- the decision

    def place(self, now: float) -> Sequence[Start]:
        """Return what starts at `now` (Unix seconds), in the order of the queue.

        What is returned counts as held from now on, until somebody says otherwise: `hold` when it has happened, `wait` or
        `forget` when it has not.
        """
        return self._decide(now).starts

    @property
    def promises(self) -> Sequence[Promise]:
        """What was promised in the last placement, first in line first."""
        return self._promised.made

    def look(self, now: float, *, blocked: Mapping[str, str] | None = None, idle: frozenset[int] = frozenset()) -> Outcome:
        """Return what a placement at `now` would decide, and from what; nothing is changed.

        `blocked` says of devices that are withheld for GPU state of `idle` sessions alone why it stays there.
        """
        promised = self._promised
        nodes, withheld, moves = self._nodes
        picture = Snapshot(
            nodes=nodes,
            qos=self._qos,
            waiting=[job for job, _ in self._waiting.values()],
            holding=tuple(self._holding.values()),
            withheld=withheld,
            blocked=blocked or {},
            idle=idle,
            moves=moves,
            partitions=self._partitions,
            reservations=self._reservations,
            promises=self._most,
            submit_limits=self.limits.submit_limits,
        )
        cycle = self._decide(now, explains=True)
        starts = cycle.starts
        outcome = Outcome(
            now=now,
            starts=starts,
            started=[self._holding[start.job_id] for start in starts],
            promises=cycle.promises,
            refused=cycle.refused,
            kept_out=cycle.kept_out,
            picture=picture,
            order=self._order,
        )
        started = {start.job_id for start in starts}
        for job in picture.waiting if started else ():
            if job.id in started:
                self.wait(job)
        self._promised = promised
        return outcome

    def _decide(self, now: float, *, explains: bool = False) -> Cycle:
        self._wake(now)
        cycle = Cycle(self, now, Promises(self._most), explains=explains)
        try:
            cycle.run()
        finally:
            self._stop_walking()
        self._promised = cycle.promises
        return cycle

    def _stop_walking(self) -> None:
        self._walked = None
        for group in self._passed_by:
            if group.entry is None:
                group.enter()
        self._passed_by.clear()

    def _wake(self, now: float) -> None:
        while self._paused and self._paused[0][0] <= now:
            at, job_id = heappop(self._paused)
            job, group = self._waiting.get(job_id, (None, None))
            if job is not None and group is None and job.not_before == at:
                self._enter(job)

    # ---- the line

    def _enter(self, job: Waiting) -> None:
        alike = Alike(job.owner, job.account, job.qos, job.partition, job.resources, job.seconds, job.longest, job.array)
        group = self._groups.get(alike)
        if group is None:
            group = self._groups[alike] = self._make_group(alike)
        self._waiting[job.id] = (job, group)
        if group.add(self._order.late(job), job):
            self._has_moved(group)

    def _has_moved(self, group: Group) -> None:
        """The first job of the group is another one."""
        self.limits.put(group)
        group.enter()

    def _make_group(self, alike: Alike) -> Group:
        owner, account, qos, partition, resources, seconds, longest, _ = alike
        allowed_nodes = self._allowed_by_owner.of(owner, account, partition)
        limits = None if allowed_nodes is None else self.limits.of(alike)
        level = self.fit.level(resources.gpu_memory)
        bulk = self.lines.enter(partition, resources, (seconds, longest), allowed_nodes or NOWHERE, level)
        offset = self._order.offset(owner, account, qos, resources.total_gpus)
        self.limits.add(limits)
        return Group(alike, bulk, limits, offset)

    def _leave(self, group: Group, job_id: int) -> None:
        """A job is not in line any more."""
        if group.remove(job_id):
            self._has_moved(group)
            if group.key is None:
                self._drop(group)
        if group.limits is not None:
            self.limits.free(group.limits)

    def _drop(self, group: Group) -> None:
        """Nobody is in the group any more."""
        del self._groups[group.alike]
        self._stranded.pop(group, None)
        self.limits.drop(group)
        self.lines.leave(group.bulk)

    def _reorder(self) -> None:
        """The groups have other places in line than before."""
        self.lines.clear()
        self._stranded.clear()
        for group in self._groups.values():
            alike = group.alike
            group.reorder(self._order.offset(alike.owner, alike.account, alike.qos, alike.resources.total_gpus))
        self.limits.sort()
        for group in self._groups.values():
            if group.parked is None:
                group.enter()

    def _regroup(self) -> None:
        """The groups, and the limits that they wait under, are others than before."""
        clusters = {name for name, part in self._partitions.items() if part.cluster}
        self.limits.renew(self._qos, self._holding.values(), clusters)
        self._groups.clear()
        self.lines = Lines()
        self._stranded.clear()
        self._first_fits.clear()
        for job, group in list(self._waiting.values()):
            if group is not None:
                self._enter(job)

    def first_freed(self, queue: LimitQueue) -> Parked | None:
        """Return `LimitQueue.first_freed`, but nobody who has been passed over in this placement: they are let in after it."""
        while (one := queue.first_freed()) is not None:
            group = one[2]
            if self._walked is None or group.key is None or group.key >= self._walked:
                return one
            group.parked = None
            self._passed_by.append(group)
        return None

    def strand(self, group: Group) -> None:
        """The group's jobs fit on none of the nodes that take jobs."""
        group.leave_line()
        self._stranded[group] = None

    # ---- rooms

    def _set_nodes(self, nodes: Sequence[Node], withheld: frozenset[str], moves: Mapping[str, int]) -> None:
        self._nodes = (nodes, withheld, moves)
        rooms = rooms_of(nodes, self._holding.values(), withheld, moves)
        self._by_name = {room.name: room for room in rooms}
        levels, self.fit = self.fit.levels, Fit(rooms)
        self._rooms = rooms
        self._first_fits = {}
        self._allowed_by_owner.set_rooms(rooms)
        if self.fit.levels != levels:
            self.lines.sort_needs(self.fit.level)
        for group in self._stranded:
            group.enter()
        self._stranded.clear()

    def _set_realms(self) -> None:
        """Partitions or reservations have changed. Whoever calls groups the line anew."""
        self._allowed_by_owner = AllowedNodesByOwner(self._rooms, self._partitions, self._reservations)
        self.fit = Fit(self._rooms)

    def _changed(self, room: NodeCapacity) -> None:
        for fits in self._first_fits.values():
            fits.changed(room)

    def _places(self, held: Holding) -> Iterable[tuple[NodeCapacity, tuple[str, ...]]]:
        """The rooms in which something is held, with the devices."""
        for share in held.shares:
            room = self._by_name.get(share.node)
            if room is not None:
                yield room, share.devices

    def slot(self, group: Group, promises: Promises, now: float) -> Slot | None:
        """Return when and where the group's jobs first fit beside `promises`."""
        wanted, allowed_nodes = group.resources, group.bulk.allowed_nodes
        kind = kind_of(wanted, allowed_nodes)
        fits = self._first_fits.pop(kind, None) or FirstFits(wanted, allowed_nodes, self._rooms)
        self._first_fits[kind] = fits  # the one that was asked last is at the end
        if len(self._first_fits) > _FIRST_FITS:
            del self._first_fits[next(iter(self._first_fits))]
        if is_plain(allowed_nodes, promises):
            return fits.earliest(now)
        return earliest_beside(wanted, (group.seconds, group.longest), allowed_nodes, fits.moments(), promises, now)

    def start(self, group: Group, rooms: Sequence[NodeCapacity], now: float, promises: Promises) -> Start:
        """The group's first job starts in these rooms, or in Slurm."""
        job, wanted, limits = group.head, group.resources, group.limits
        self._walked = group.key
        ends_by, cluster = now + group.seconds, group.bulk.allowed_nodes.cluster
        first, *others = [NodePart(node=cluster)] if cluster else start_in(rooms, job, ends_by, self.fit, promises)
        for room in rooms:
            self._changed(room)
        del self._waiting[job.id]
        self._holding[job.id] = Holding(
            id=job.id,
            owner=job.owner,
            name=job.name,
            qos=job.qos,
            resources=wanted,
            node=first.node,
            devices=first.devices,
            others=tuple(others),
            ends_by=now + group.longest,
            due=ends_by,
            account=job.account,
            partition=job.partition,
            array=job.array,
        )
        if limits is not None:
            limits.charge(job.id, wanted.total_gpus, ends_by)
        self._leave(group, job.id)
        return Start(job_id=job.id, node=first.node, devices=first.devices, others=tuple(others))
