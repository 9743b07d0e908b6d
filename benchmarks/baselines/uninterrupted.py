"""Policies that let a job run to its end: FIFO and first fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from baselines.packing import Nodes, Placement
from baselines.pieces import Course
from baselines.waiting import Waiting, walk
from carrel.simulate.trace import Cluster, Run

#: Runs jobs, which are in the order of submission and each small enough for the cluster; yields how it went as they end.
Schedule = Callable[[Sequence[Course], Cluster], Iterator[Run]]


def fifo(courses: Sequence[Course], cluster: Cluster) -> Iterator[Run]:
    """Start jobs in the order of submission; the first that does not fit keeps all others waiting."""
    return _run(courses, cluster, blocking=True)


def first_fit(courses: Sequence[Course], cluster: Cluster) -> Iterator[Run]:
    """Start every job that fits, in the order of submission: backfill without a reservation.

    Known as "fjf" in the simulator of Tiresias (Gu et al., NSDI'19). A large job may starve.
    """
    return _run(courses, cluster, blocking=False)


def _run(courses: Sequence[Course], cluster: Cluster, *, blocking: bool) -> Iterator[Run]:
    nodes, waiting = Nodes(cluster), Waiting()
    gpus = [course.job.gpus for course in courses]
    ends: list[tuple[float, int, Placement]] = []
    arrived = 0
    while ends or arrived < len(courses):
        now = ends[0][0] if ends else float("inf")
        if arrived < len(courses):
            now = min(now, courses[arrived].job.submitted)
        while ends and ends[0][0] <= now:
            _, index, placement = heappop(ends)
            nodes.give_back(placement)
            yield courses[index].finish(now)
        while arrived < len(courses) and courses[arrived].job.submitted <= now:
            waiting.put((0.0, arrived, arrived), gpus[arrived])
            arrived += 1
        started = walk(nodes, waiting, gpus, blocking=blocking)
        for (_, _, index), placement in zip(started.on, started.placements, strict=True):
            courses[index].start(now)
            heappush(ends, (courses[index].ends, index, placement))
