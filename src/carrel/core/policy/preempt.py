"""Which running jobs are preempted so that one can start that goes before them; and which of those that were stopped go on.

The rules, with an example, are in `docs/scheduling.md`. Only a job that placement has promised a place to asks here. What a set
of jobs would make room for is counted node by node; on every node the cheapest set that is enough is looked for, then the nodes
with the cheapest sets are taken, and then nobody is left in the set without whom the rest is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from carrel.core.domain.placement import Holding, Preempt, Snapshot, Waiting
from carrel.core.domain.qos import PreemptMode, QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.limits import LimitsByOwner
from carrel.core.policy.node_capacity import NodeCapacity, rooms_of

#: Seconds that a job waits for what ends by itself before another job is preempted for it.
PATIENCE = 10.0

#: What choosing somebody costs, smallest first: whether work is lost, how much (GPU-seconds), how many are preempted, how urgent
#: they are, which they are.
Cost = tuple[bool, float, int, float, tuple[int, ...]]


def preempt(
    picture: Snapshot, job: Waiting, now: float, *, parent: int | None = None, idle: Collection[int] = ()
) -> tuple[Preempt, ...]:
    """Return the jobs to preempt now (Unix seconds) so that `job`, which waits and has been promised a place, can start.

    Nobody, when its class of service takes from nobody, when its limits do not let it in, when there is room within `PATIENCE`
    seconds anyway, or when all jobs that may be preempted together would not make room. No job in the answer could be left out.
    The order of the snapshot's sequences does not matter. `parent` is the job that waits for this one, and `idle` are jobs that
    wait for others and do nothing meanwhile: whatever their classes, they may be stopped.
    """
    service = picture.qos.get(job.qos)
    if service is None or (not service.preempts and parent is None and not idle) or job.not_before > now:
        return ()
    waits = {held.id: held for held in picture.holding if (held.id == parent or held.id in idle) and _may_stop(held, now)}
    victims = [_as_victim(picture, held) for held in picture.holding if _may_take(picture, service.preempts, held, now)]
    limits = LimitsByOwner(picture.qos, picture.holding, now).of(job) if victims or waits else None
    if limits is None or limits.refuses(job.resources.total_gpus) is not None:
        return ()
    for stops in (True, False):
        # Who is stopped keeps its memory. Where that is too little, all preempted jobs are requeued.
        others = [held for held in victims if held.id != parent and not (stops and held.id in waits)]
        chosen = Choice(picture, job, [*waits.values(), *others] if stops else others, now, stops=stops).cheapest()
        if chosen is not None:
            modes = {held.id: _mode(held, stops=stops) for held in chosen}
            return tuple(
                Preempt(job_id=job_id, mode=modes[job_id], by=job.id, qos=job.qos)
                for job_id in sorted(held.id for held in chosen)
            )
    return ()


def _may_take(picture: Snapshot, gives_way: Collection[str], held: Holding, now: float) -> bool:
    """True when a class of service from which `gives_way` are taken may take the place of a job that holds something."""
    if held.qos not in gives_way or not held.preemptible or held.leaving or held.suspended or held.ends_by <= now + PATIENCE:
        return False
    service = picture.qos.get(held.qos)
    if service is None or service.preempt_mode is PreemptMode.NONE:
        return False
    return service.preempt_exempt_time == 0 or (held.started_at is not None and now >= _exempt_until(held, service))


def _may_stop(held: Holding, now: float) -> bool:
    """True when a job that waits for another one can be stopped meanwhile."""
    return held.preemptible and held.suspendable and not held.leaving and not held.suspended and held.ends_by > now + PATIENCE


def _exempt_until(held: Holding, service: QoS) -> float:
    return (held.started_at or 0.0) + service.preempt_exempt_time


def _as_victim(picture: Snapshot, held: Holding) -> Holding:
    """What its class of service wants is done with it, or less."""
    stops = held.suspendable and picture.qos[held.qos].preempt_mode is PreemptMode.SUSPEND
    return replace(held, suspendable=stops)


def _ran(held: Holding, now: float) -> float:
    return 0.0 if held.started_at is None else max(0.0, now - held.started_at)


def _mode(held: Holding, *, stops: bool) -> PreemptMode:
    return PreemptMode.SUSPEND if stops and held.suspendable else PreemptMode.REQUEUE


class Choice:
    """Which jobs might be preempted for one job, and what that would make room for."""

    def __init__(
        self,
        picture: Snapshot,
        job: Waiting,
        victims: Sequence[Holding],
        now: float,
        *,
        stops: bool,
    ) -> None:
        self._wanted = job.resources
        self._now = now
        self._stops = stops
        self._priority = {name: service.priority for name, service in picture.qos.items()}
        rooms = rooms_of(picture.nodes, picture.holding, picture.withheld, picture.moves)
        self._rooms = [room for room in rooms if room.could_hold(job.resources) and may_run(picture, job, room.name, now)]
        self._there: dict[str, list[Holding]] = {room.name: [] for room in self._rooms}
        for held in sorted(victims, key=lambda held: held.id):
            for share in held.shares:
                if share.node in self._there:
                    self._there[share.node].append(held)
        # By its walltime: a job that is expected to be over need not be.
        ends = {held.id for held in picture.holding if held.leaving or held.ends_by <= now + PATIENCE}
        #: What is free in each room when everything has ended that does so anyway: cpus, memory, GPUs.
        self._free = {room.name: self._soon(room, ends) for room in self._rooms}

    def _soon(self, room: NodeCapacity, ends: Collection[int]) -> tuple[int, int, int]:
        cpus, memory, gpus = room.cpus, room.memory, room.free_of(self._wanted)
        for job_id, release in room.releases.items():
            if job_id in ends:
                cpus, memory, gpus = (
                    cpus + release.cpus,
                    memory + release.memory,
                    gpus + room.suited_of(release.gpus, self._wanted),
                )
        return cpus, memory, gpus

    def cheapest(self) -> Collection[Holding] | None:
        """Return the jobs to preempt; None when none needs to be or nothing would help."""
        if self._able(()) >= self._wanted.nodes:
            return None
        sets = []
        for room in self._rooms:
            found = self._on(room)
            if found is not None:
                sets.append((self._cost(found), room.index, found))
        if len(sets) < self._wanted.nodes:
            return None
        sets.sort(key=lambda entry: entry[:2])
        together = {held.id: held for _, _, found in sets[: self._wanted.nodes] for held in found}
        dear = sorted(together.values(), key=lambda held: self._cost((held,)), reverse=True)
        return self._without_surplus(dear, lambda left: self._able(left) >= self._wanted.nodes)

    def _on(self, room: NodeCapacity) -> Sequence[Holding] | None:
        """The cheapest jobs that make enough room in one room; None when all of them do not."""
        here = self._there[room.name]
        if not self._fits(room, here):
            return None
        dear = sorted(here, key=lambda held: self._cost((held,)), reverse=True)
        # Leaving out the dear ones first ends with the cheap ones; leaving out the small ones first ends with few.
        small = sorted(dear, key=lambda held: (held.resources.gpus, held.resources.cpus, held.resources.memory))
        sets = [self._without_surplus(order, lambda left: self._fits(room, left)) for order in (dear, small)]
        return min(sets, key=self._cost)

    def _without_surplus(self, victims: Sequence[Holding], enough: Callable[[Sequence[Holding]], bool]) -> Sequence[Holding]:
        """Leave out, first to last, everybody without whom the rest is `enough`."""
        kept = list(victims)
        for held in victims:
            rest = [other for other in kept if other is not held]
            if enough(rest):
                kept = rest
        return kept

    def _cost(self, victims: Sequence[Holding]) -> Cost:
        lost = [held for held in victims if _mode(held, stops=self._stops) is PreemptMode.REQUEUE]
        return (
            bool(lost),
            sum(_ran(held, self._now) * max(1, held.resources.total_gpus) for held in lost),
            len(victims),
            sum(self._priority.get(held.qos, 0) for held in victims),
            tuple(sorted(held.id for held in victims)),
        )

    def _able(self, victims: Sequence[Holding]) -> int:
        """How many rooms hold what is wanted once these have given way and what ends anyway has ended."""
        return sum(self._fits(room, victims) for room in self._rooms)

    def _fits(self, room: NodeCapacity, victims: Iterable[Holding]) -> bool:
        (cpus, memory, gpus), wanted = self._free[room.name], self._wanted
        for held in victims:
            release = room.releases.get(held.id)
            if release is not None:
                cpus, gpus = cpus + release.cpus, gpus + room.suited_of(release.gpus, self._wanted)
                memory += release.memory if _mode(held, stops=self._stops) is PreemptMode.REQUEUE else 0
        return cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus


def next_exemption(picture: Snapshot, job: Waiting, now: float) -> float | None:
    """Return when the next job comes out of its exempt time that may be preempted for `job` then; None when none does."""
    service = picture.qos.get(job.qos)
    taken = picture.qos.keys() & service.preempts if service is not None else ()
    moments = [
        _exempt_until(held, picture.qos[held.qos])
        for held in picture.holding
        if held.qos in taken and held.started_at is not None
    ]
    return min((moment for moment in moments if moment > now), default=None)


def may_run(picture: Snapshot, job: Waiting, node: str, now: float) -> bool:
    """True when partition and reservations let `job` run on the node from now to its walltime."""
    partition = picture.partitions.get(job.partition)
    if job.partition and (partition is None or not partition.has(node)):
        return False
    ends_by = now + job.longest
    return not any(
        one.begin < ends_by and now < one.end and one.covers(node) and not one.admits(job.owner, job.account)
        for one in picture.reservations
    )


def resumable(picture: Snapshot, stopped: Sequence[Holding], now: float) -> tuple[int, ...]:
    """Return which of the jobs that were `stopped` go on now, in their order.

    `stopped` says what each had, and takes again: the same devices, as many processors; its memory it has kept, which is what
    the picture says that it holds. It goes on when all that is free and its limits let it, and nobody waits who would take it
    again: a job of a class that takes from its class, whose limits let it in, and that one of its nodes could hold. A drained
    node lets it go on, as it lets go on what runs.
    """
    nodes = [replace(node, drained=None) for node in picture.nodes]
    rooms = {room.name: room for room in rooms_of(nodes, picture.holding, picture.withheld)}
    ledger = LimitsByOwner(picture.qos, picture.holding, now)
    ahead = [job for job in picture.waiting if job.not_before <= now and _is_let_in(ledger, job)]
    found = []
    for held in stopped:
        takers = [job for job in ahead if held.qos in picture.qos[job.qos].preempts]
        places = [(rooms.get(share.node), share.devices) for share in held.shares]
        there = [(room, devices) for room, devices in places if room is not None and _has_back(room, devices, held.resources)]
        limits, gpus = ledger.of(held), held.resources.total_gpus
        if limits is not None and any(limit.gpus + gpus > limit.max_gpus for limit in limits.parts if gpus):
            continue  # its owner has started something else meanwhile
        if len(there) < len(places) or any(
            room.could_hold(job.resources) and may_run(picture, job, room.name, now) for job in takers for room, _ in there
        ):
            continue
        found.append(held.id)
        if limits is not None:
            limits.discharge(held.id)
            limits.charge(held.id, gpus, held.ends_by)
        for room, devices in there:
            room.give_back(held.id, ())
            room.hold(held.id, held.resources, devices, held.ends_by)
    return tuple(found)


def _is_let_in(ledger: LimitsByOwner, job: Waiting) -> bool:
    limits = ledger.of(job)
    return limits is not None and limits.refuses(job.resources.total_gpus) is None


def _has_back(room: NodeCapacity, devices: Collection[str], wanted: Resources) -> bool:
    """True when a job that was stopped finds its devices and processors free."""
    free = {uuid for uuids in room.free.values() for uuid in uuids}
    return room.cpus >= wanted.cpus and free.issuperset(devices)
