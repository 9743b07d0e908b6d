"""The queue, the nodes and who holds what, kept from change to change, so that a placement is one walk through the line."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import ArrayLimit, Holding, Kind, MachineWait, Snapshot, Start, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.submit_limits import SubmitLimit, SubmitScope
from carrel.core.policy.allowed_nodes import AllowedNodesByOwner
from carrel.core.policy.fit import Fit
from carrel.core.policy.limits import Limit, LimitsByOwner
from carrel.core.policy.node_capacity import NodeCapacity, rooms_of
from carrel.core.policy.order import Order, order_of
from carrel.core.policy.promises import Promise, Promises
from carrel.core.policy.situation import Outcome
from carrel.core.policy.walk import Alike, Entry, Walk


class Placer:
    """A lab as the walk sees it, told of each change. Not thread-safe."""

    def __init__(self) -> None:
        self._qos: Mapping[str, QoS] = {}
        self._order = Order({}, {}, age_weight=0.0, share_weight=0.0, size_weight=0.0)
        self._nodes: tuple[Sequence[Node], frozenset[str], Mapping[str, int]] = ((), frozenset(), {})
        self._partitions: Mapping[str, Partition] = {}
        self._reservations: Sequence[Reservation] = ()
        #: Limits for which Slurm has refused jobs.
        self.submit_limits: Mapping[SubmitScope, SubmitLimit] = {}
        self.most = 1
        self.line: list[Entry] = []
        self._entries: dict[int, Entry] = {}
        self._alike: dict[Kind, Alike] = {}
        self._holding: dict[int, Holding] = {}
        #: How many jobs of each array wait or hold something.
        self._arrays: dict[ArrayLimit, int] = {}
        self._turn = 0
        self._promised = Promises()
        self.kept: frozenset[int] = frozenset()
        self._refusing: set[Limit] = set()
        #: Those that only waited for the machine that is made for them, when it was placed last.
        self.without_machine: Sequence[Waiting] = ()
        self._set_rooms()
        self._set_realms()
        self._set_limits()

    @classmethod
    def of(cls, picture: Snapshot, order: Order | None = None) -> Placer:
        """Return a placer that has been told of all that is in a picture.

        The weights of the picture make the order, where none is given.
        """
        placer = cls()
        placer.submit_limits = picture.submit_limits
        placer.nodes(picture.nodes, picture.withheld, picture.moves)
        placer.rules(picture.qos, order or order_of(picture, picture.standing), picture.partitions, promises=picture.promises)
        placer.reservations(picture.reservations)
        for held in picture.holding:
            placer.hold(held)
        for job in picture.waiting:
            placer.wait(job)
        placer.kept = picture.promised
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
        self._qos, self._order, self._partitions, self.most = qos, order, partitions, promises
        if moved:
            self._set_realms()
        if moved or renewed:
            self._set_limits()
        for alike in self._alike.values():
            self._know(alike)
        self.line = sorted(
            (order.late(job) + alike.offset, job_id, job, alike) for job_id, (_, _, job, alike) in self._entries.items()
        )
        self._entries = {entry[1]: entry for entry in self.line}

    def nodes(
        self, nodes: Sequence[Node], withheld: frozenset[str] = frozenset(), moves: Mapping[str, int] | None = None
    ) -> None:
        """These are the nodes from now on, the devices that nobody may be given, and what moves first off the others."""
        moves = moves or {}
        if (nodes, withheld, moves) != self._nodes:
            self._nodes = (nodes, withheld, moves)
            self._set_rooms()
            self._allowed_by_owner.set_rooms(self.fit.rooms)

    def reservations(self, reservations: Sequence[Reservation]) -> None:
        """These windows are kept for some people from now on."""
        if tuple(reservations) != tuple(self._reservations):
            self._reservations = tuple(reservations)
            self._set_realms()
            for alike in self._alike.values():
                self._know(alike)

    def next_change(self, now: float) -> float | None:
        """Return when time alone changes where somebody may run: the first begin or end of a window after `now`."""
        return self._allowed_by_owner.next_change(now)

    def wait(self, job: Waiting) -> None:
        """`job` is in line, whatever it was before."""
        self.forget(job.id)
        place = (job.qos, job.partition, job.resources, job.node)
        kind = Kind(job.owner, job.account, *place, job.seconds, job.longest, job.array)
        alike = self._alike.get(kind)
        if alike is None:
            alike = self._alike[kind] = Alike(kind)
            self._know(alike)
        alike.jobs += 1
        self._count(job.array, 1)
        entry = self._entries[job.id] = (self._order.late(job) + alike.offset, job.id, job, alike)
        insort(self.line, entry)

    def hold(self, held: Holding) -> None:
        """A job holds this, whatever it was before."""
        before = self._holding.get(held.id)
        if before is not None and (before.shares, before.resources) == (held.shares, held.resources):
            self._holding[held.id] = held
            if before.over_by != held.over_by:
                for room, _ in self._places(held):
                    room.releases[held.id] = room.releases[held.id]._replace(at=held.over_by)
                limits = self._limits_by_owner.of(held)
                if limits is not None:
                    limits.discharge(held.id)
                    limits.charge(held.id, held.resources.total_gpus, held.over_by)
            return
        self.forget(held.id)
        self._holding[held.id] = held
        self._count(held.array, 1)
        for room, devices in self._places(held):
            self.fit.hold(room, held, devices)
        limits = self._limits_by_owner.of(held)
        if limits is not None:
            limits.charge(held.id, held.resources.total_gpus, held.over_by)

    def forget(self, job_id: int) -> None:
        """The job is over, or was never there."""
        self._leave(job_id)
        held = self._holding.pop(job_id, None)
        if held is None:
            return
        for room, devices in self._places(held):
            self.fit.give_back(room, job_id, devices)
        limits = self._limits_by_owner.of(held)
        if limits is not None:
            limits.discharge(job_id)
        self._count(held.array, -1)

    # ---- Slurm's limits to submitted jobs

    def refused(self, scope: SubmitScope, code: str, words: str) -> None:
        """Slurm has refused a job of this scope: no more of its jobs are handed over than are there now."""
        if scope not in self._limits_by_owner.submitted:
            self._allow(scope, SubmitLimit(code, words, 0))
            self._set_limits()
        limit = self._limits_by_owner.submitted[scope]
        limit.jobs_code, limit.words, limit.max_jobs = code, words, limit.jobs
        self._allow(scope, SubmitLimit(code, words, limit.jobs))

    def admit(self, scope: SubmitScope, more: int) -> bool:
        """Let so many more of them be handed over: Slurm may have room by now. False where nobody waits for that: the limit is
        forgotten, and the next refusal tells what it is then."""
        limit = self._limits_by_owner.submitted[scope]
        if limit in self._refusing:
            limit.max_jobs += more
            self._allow(scope, SubmitLimit(limit.jobs_code, limit.words, int(limit.max_jobs)))
            return True
        self.submit_limits = {key: known for key, known in self.submit_limits.items() if key != scope}
        limit.max_jobs = inf
        return False

    def _allow(self, scope: SubmitScope, known: SubmitLimit) -> None:
        self.submit_limits = {**self.submit_limits, scope: known}

    # ---- the decision

    def place(self, now: float) -> Sequence[Start]:
        """Return what starts at `now` (Unix seconds), in the order of the queue.

        What is returned counts as held from now on, until somebody says otherwise: `hold` when it has happened, `wait` or
        `forget` when it has not.
        """
        walk = self._walk(now)
        self._promised, self._refusing, self.without_machine = walk.promises, walk.refusing, walk.without_machine
        self.kept = frozenset(promise.job.id for promise in walk.promises.made)
        return walk.starts

    @property
    def promises(self) -> Sequence[Promise]:
        """What was promised in the last placement, first in line first."""
        return self._promised.made

    def look(
        self,
        now: float,
        *,
        blocked: Mapping[str, str] | None = None,
        idle: frozenset[int] = frozenset(),
        machines: Mapping[int, MachineWait] | None = None,
    ) -> Outcome:
        """Return what a placement at `now` would decide, and from what; nothing is changed.

        `blocked` says of devices that are withheld for GPU state of `idle` sessions alone why it stays there, `machines` of jobs
        what the machine waits for that is made for them.
        """
        nodes, withheld, moves = self._nodes
        picture = Snapshot(
            nodes=nodes,
            qos=self._qos,
            waiting=[entry[2] for entry in self.line],
            holding=tuple(self._holding.values()),
            withheld=withheld,
            blocked=blocked or {},
            idle=idle,
            machines=machines or {},
            moves=moves,
            partitions=self._partitions,
            reservations=self._reservations,
            promises=self.most,
            submit_limits=self.submit_limits,
            promised=self.kept,
        )
        walk = self._walk(now, explains=True)
        started = {held.id for held in walk.started}
        for job in picture.waiting if started else ():
            if job.id in started:
                self.wait(job)
        return Outcome(
            now=now,
            starts=walk.starts,
            started=walk.started,
            passed=walk.passed,
            promises=walk.promises,
            picture=picture,
            order=self._order,
        )

    def _walk(self, now: float, *, explains: bool = False) -> Walk:
        self._turn += 1
        walk = Walk(self, now, self._turn, explains=explains)
        walk.run()
        for held in walk.started:
            self._count(held.array, 1)  # first, so that what counts for the array is kept
            self._leave(held.id)
            self._holding[held.id] = held
        return walk

    # ---- what is known of each job

    def _know(self, alike: Alike) -> None:
        """Look up what holds for jobs of one kind."""
        owner, account, qos, *_ = alike.kind
        alike.allowed_nodes = self._allowed_by_owner.of(alike.kind)
        alike.limits = self._limits_by_owner.of(alike.kind)
        alike.offset = self._order.offset(owner, account, qos, alike.gpus)

    def _leave(self, job_id: int) -> None:
        """Take a job out of the line, if it is there."""
        entry = self._entries.pop(job_id, None)
        if entry is None:
            return
        del self.line[bisect_left(self.line, entry[:2])]
        alike = entry[3]
        alike.jobs -= 1
        if not alike.jobs:
            del self._alike[alike.kind]
        self._count(entry[2].array, -1)

    def _count(self, array: ArrayLimit | None, more: int) -> None:
        """Keep the limit of an array for as long as there are jobs of it."""
        if array is not None:
            self._arrays[array] = self._arrays.get(array, 0) + more
            if not self._arrays[array]:
                del self._arrays[array]
                self._limits_by_owner.forget(array)

    def _set_limits(self) -> None:
        """Classes of service, clusters or Slurm's limits are others than before."""
        clusters = {name for name, part in self._partitions.items() if part.cluster}
        self._limits_by_owner = LimitsByOwner(
            self._qos, self._holding.values(), clusters=clusters, submit_limits=self.submit_limits
        )
        for alike in self._alike.values():
            self._know(alike)

    def _set_rooms(self) -> None:
        nodes, withheld, moves = self._nodes
        rooms = rooms_of(nodes, self._holding.values(), withheld, moves)
        self._by_name = {room.name: room for room in rooms}
        self.fit = Fit(rooms)

    def _set_realms(self) -> None:
        """Partitions or reservations are others than before."""
        self.fit = Fit(self.fit.rooms)
        self._allowed_by_owner = AllowedNodesByOwner(self.fit.rooms, self._partitions, self._reservations)

    def _places(self, held: Holding) -> Iterable[tuple[NodeCapacity, tuple[str, ...]]]:
        """Return the rooms in which something is held, with the devices."""
        for share in held.shares:
            room = self._by_name.get(share.node)
            if room is not None:
                yield room, share.devices
