"""Who is ahead of whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from carrel.domain.placement import Waiting
from carrel.domain.qos import QoS


def in_order(waiting: Iterable[Waiting], qos: Mapping[str, QoS], age_weight: float) -> list[Waiting]:
    """Return the jobs, first in line first.

    A job's worth is ``(qos.priority + job.priority) * age_weight + (now - submitted_at)``: priority counted in seconds,
    plus the seconds that it has waited. All jobs age alike, so `now` falls out of every comparison and the order of two
    jobs never changes while they wait. Whatever its priority, a job submitted more than `age_weight` seconds later per
    point of difference never goes ahead: that is why nobody waits for ever. Ties go to the smaller id.
    """
    points = {name: service.priority * age_weight for name, service in qos.items()}
    # Two stable sorts by plain numbers keep the comparisons in C and make no object per job.
    ordered = sorted(waiting, key=attrgetter("id"))
    ordered.sort(key=lambda job: job.submitted_at - job.priority * age_weight - points.get(job.qos, 0.0))
    return ordered
