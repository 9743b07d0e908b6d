"""What the rules mean: one walk through the whole queue. A `Placer` decides and explains the same, from change to change."""

from __future__ import annotations

from collections import defaultdict

from carrel.core.domain.placement import Snapshot, Start, Waiting
from carrel.core.policy.allowed_nodes import AllowedNodes, AllowedNodesByOwner
from carrel.core.policy.backfill import earliest, earliest_beside, first_fit, is_plain, rooms_for, start_in
from carrel.core.policy.fit import Fit
from carrel.core.policy.limits import Limit, Limits, LimitsByOwner
from carrel.core.policy.node_capacity import rooms_of
from carrel.core.policy.order import order_of
from carrel.core.policy.promises import Promise, Promises
from carrel.core.policy.situation import BEGIN_TIME, BLOCKED, INVALID_QOS, PARTITION_DOWN


class Walk:
    """One walk through the queue of a picture, first in line first."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self.starts: list[Start] = []
        #: Why each of the others waits, in the order of the queue; `BLOCKED` where nothing but room is missing.
        self.held: list[tuple[int, str]] = []
        self.promises = Promises(snapshot.promises)
        self._rooms = rooms_of(snapshot.nodes, snapshot.holding, snapshot.withheld, snapshot.moves)
        self._allowed_by_owner = AllowedNodesByOwner(self._rooms, snapshot.partitions, snapshot.reservations)
        self._now = now
        self._fit = Fit(self._rooms)
        clusters = {name for name, part in snapshot.partitions.items() if part.cluster}
        self._ledger = LimitsByOwner(snapshot.qos, snapshot.holding, now, clusters=clusters, submit_limits=snapshot.submit_limits)
        #: Those that wait so far under each limit: their GPUs, and the limits inside it.
        self._waits: defaultdict[Limit, list[tuple[int, tuple[Limit, ...]]]] = defaultdict(list)
        for job in order_of(snapshot, snapshot.standing).line(snapshot.waiting):
            self._consider(job)

    def _consider(self, job: Waiting) -> None:
        limits, allowed_nodes = self._ledger.of(job), self._allowed_by_owner.of(job.owner, job.account, job.partition)
        if limits is None or allowed_nodes is None:
            self.held.append((job.id, INVALID_QOS if limits is None else PARTITION_DOWN))
            return
        if job.not_before > self._now:
            self.held.append((job.id, BEGIN_TIME))
            return
        wanted, seconds = job.resources, job.seconds
        refusal = limits.refuses(wanted.total_gpus, self._ahead)
        if refusal is not None:
            self._wait(job, limits, refusal[1])
            return
        if allowed_nodes.cluster:
            limits.charge(job.id, wanted.total_gpus, self._now + seconds)
            self.starts.append(Start(job_id=job.id, node=allowed_nodes.cluster))
            return
        rooms = rooms_for(wanted, self._now, (seconds, job.longest), self._fit, allowed_nodes, self.promises)
        if len(rooms) == wanted.nodes:
            first, *others = start_in(rooms, job, self._now + seconds, self._fit, self.promises)
            limits.charge(job.id, wanted.total_gpus, self._now + seconds)
            self.starts.append(Start(job_id=job.id, node=first.node, devices=first.devices, others=tuple(others)))
            return
        if self.promises.wants(job.partition):
            self._promise(job, allowed_nodes, limits)
        self._wait(job, limits, BLOCKED)

    def _wait(self, job: Waiting, limits: Limits, code: str) -> None:
        self.held.append((job.id, code))
        if job.resources.gpus:
            for limit in limits.parts:
                self._waits[limit].append((job.resources.total_gpus, limits.inside(limit)))

    def _ahead(self, limit: Limit) -> int:
        """GPUs of the largest job ahead that nothing but this limit keeps out; 0 for none."""
        return max((gpus for gpus, inner in self._waits[limit] if limit.counts(inner, gpus)), default=0)

    def _promise(self, job: Waiting, allowed_nodes: AllowedNodes, limits: Limits) -> None:
        """Promise the job the first moment at which it fits. Without one (drained nodes) it stands in nobody's way."""
        wanted = job.resources
        if is_plain(allowed_nodes, self.promises):
            slot = earliest(wanted, allowed_nodes.rooms, self._now)
        else:
            firsts = {
                room.index: fit[0]
                for room in allowed_nodes.rooms
                if room.could_hold(wanted) and (fit := first_fit(wanted, room, self._now)) is not None
            }
            slot = earliest_beside(wanted, (job.seconds, job.longest), allowed_nodes, firsts, self.promises, self._now)
        if slot is not None:
            self.promises.make(Promise(job, *slot, job.seconds))
            limits.claim(job)
