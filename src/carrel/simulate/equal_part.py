"""Completion times of each user's jobs on an equal part of the lab: the measure of whether sharing is fair.

A user's finish-time fairness is the time that their jobs took, from submission to end, divided by the time that they would have
taken on an equal part of the GPUs that nobody else uses (K. Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling",
NSDI 2020, section 3.1). At 1 or less the user has no reason to want a part of their own. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf

from carrel.simulate.trace import Trace, TraceJob


def completions_alone(trace: Trace, gpus: int) -> Mapping[int, float]:
    """Seconds from submission to end of each job by its id, where each user has an equal part of `gpus` GPUs.

    A part is one node, and holds the user's widest job at least. What fits starts there, in the order of submission. Jobs that
    ask for more GPUs than there are are left out.
    """
    members: dict[str, list[TraceJob]] = {}
    for job in trace.jobs:
        if job.gpus <= gpus:
            members.setdefault(job.user, []).append(job)
    found: dict[int, float] = {}
    for jobs in members.values():
        found |= _first_fit(jobs, max(gpus // len(members), *(job.gpus for job in jobs), 1))
    return found


def _first_fit(jobs: Sequence[TraceJob], free: int) -> Mapping[int, float]:
    #: By GPUs, as places among the jobs: of one size the first in line always starts first.
    lines: dict[int, deque[int]] = {}
    ends: list[tuple[float, int]] = []
    found: dict[int, float] = {}
    arrived = 0
    while len(found) < len(jobs):
        now = min(ends[0][0] if ends else inf, jobs[arrived].submitted if arrived < len(jobs) else inf)
        while ends and ends[0][0] <= now:
            free += heappop(ends)[1]
        while arrived < len(jobs) and jobs[arrived].submitted <= now:
            lines.setdefault(jobs[arrived].gpus, deque()).append(arrived)
            arrived += 1
        while fitting := [line[0] for size, line in lines.items() if line and size <= free]:
            job = jobs[min(fitting)]
            lines[job.gpus].popleft()
            free -= job.gpus
            heappush(ends, (now + job.duration, job.gpus))
            found[job.id] = now + job.duration - job.submitted
    return found
