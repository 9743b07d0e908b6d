"""What each user would have with an equal part of the lab for themselves: the measure of whether sharing is fair.

A user's finish-time fairness is the time that their jobs took, from submission to end, divided by the time that they would have
taken on an equal part of the GPUs that nobody else uses (K. Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling",
NSDI 2020, section 3.1). At 1 or less the user has no reason to want a part of their own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from carrel.simulate.baselines import simulate_baseline
from carrel.simulate.trace import Cluster, Trace, TraceJob


def completions_alone(trace: Trace, gpus: int) -> Mapping[int, float]:
    """Seconds from submission to end of each job by its id, where each user has an equal part of `gpus` GPUs.

    A part is one node, and holds the user's widest job at least. What fits starts there, in the order of submission
    (`first-fit`). Jobs that ask for more GPUs than there are are left out.
    """
    members: dict[str, list[TraceJob]] = {}
    for job in trace.jobs:
        if job.gpus <= gpus:
            members.setdefault(job.user, []).append(job)
    found: dict[int, float] = {}
    for jobs in members.values():
        part = Cluster(nodes=1, gpus_per_node=max(gpus // len(members), *(job.gpus for job in jobs), 1))
        runs = simulate_baseline("first-fit", replace(trace, jobs=jobs), part).runs
        found |= {run.id: run.completion for run in runs}
    return found
