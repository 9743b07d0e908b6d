"""Who is ahead of whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from carrel.core.domain.placement import Snapshot, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules

#: GPUs of a job that its size counts for.
MOST_SIZED = 64
#: Seconds that a tier is ahead of the one below it: some three hundred years, more than all else together comes to.
TIER = 1e10


def tiers(qos: Mapping[str, QoS]) -> Mapping[str, int]:
    """Return the tier of every class of service: the length of the longest chain of classes that it can preempt, from it down.

    Who may take from another stands before it in line. A class that is not there, or that would come twice in a chain, ends it.
    """
    found: dict[str, int] = {}

    def tier(name: str, above: tuple[str, ...]) -> int:
        if name not in found:
            below = [other for other in qos[name].preempts if other in qos and other not in above]
            found[name] = max((1 + tier(other, (*above, other)) for other in below), default=0)
        return found[name]

    return {name: tier(name, (name,)) for name in qos}


class Order:
    """The order of a queue.

    Jobs of a higher tier (`tiers`) stand before those of a lower one. Inside a tier a job's worth is counted in seconds of
    waiting: ``(qos.priority + job.priority) * age_weight``, plus its owner's standing times `share_weight`, plus its GPUs (up to
    `MOST_SIZED`) times `size_weight`, plus the seconds that it has waited, less its `short_first.late_by`. All jobs age alike, so
    `now` falls out of every comparison: only a change of somebody's standing changes the order of two jobs that wait. Every part
    but the waiting is bounded, so a job of the same tier that is submitted later by more than their sum never goes ahead: that
    is why nobody waits for ever behind their like. Ties go to the smaller id.
    """

    def __init__(
        self,
        qos: Mapping[str, QoS],
        standing: Mapping[tuple[str, str], float],
        *,
        age_weight: float,
        share_weight: float,
        size_weight: float,
    ) -> None:
        self.age_weight = age_weight
        tier = tiers(qos)
        self._points = {name: service.priority * age_weight + tier[name] * TIER for name, service in qos.items()}
        self._shares = {who: (1.0 - factor) * share_weight for who, factor in standing.items()} if share_weight else {}
        self._size_weight = size_weight

    def offset(self, owner: str, account: str, qos: str, gpus: int) -> float:
        """Seconds by which all jobs of this owner, account, QoS and size are later than their submission says."""
        late = self._shares.get((account, owner), 0.0) - self._points.get(qos, 0.0)
        return late - min(gpus, MOST_SIZED) * self._size_weight

    def late(self, job: Waiting) -> float:
        """The rest of what counts: the smallest of this plus `offset` is the first in line."""
        return job.submitted_at + job.late_by - job.priority * self.age_weight

    def place(self, job: Waiting) -> float:
        """Both together: who has the smaller one stands before the other."""
        return self.late(job) + self.offset(job.owner, job.account, job.qos, job.resources.total_gpus)

    def line(self, jobs: Iterable[Waiting]) -> list[Waiting]:
        """Return the jobs, first in line first."""
        offsets: dict[tuple[str, str, str, int], float] = {}

        def key(job: Waiting) -> float:
            alike = (job.owner, job.account, job.qos, job.resources.total_gpus)
            offset = offsets.get(alike)
            if offset is None:
                offset = offsets[alike] = self.offset(*alike)
            return self.late(job) + offset

        # Two stable sorts by plain numbers keep the comparisons in C and make no object per job.
        ordered = sorted(jobs, key=attrgetter("id"))
        ordered.sort(key=key)
        return ordered


def order_of(weights: Snapshot | LabRules, standing: Mapping[tuple[str, str], float]) -> Order:
    """Return the order of a queue, by these weights and by who has used less of their share."""
    return Order(
        weights.qos,
        standing,
        age_weight=weights.age_weight,
        share_weight=weights.share_weight,
        size_weight=weights.size_weight,
    )
