"""One trace under one of the field's policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from baselines.attained import tiresias
from baselines.pieces import Course, Piece
from baselines.shortest import shortest_service, shortest_time
from baselines.uninterrupted import Schedule, fifo, first_fit
from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Outcome, Run, Trace, TraceJob

#: How often progress is reported, at most.
STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A policy of the field to compare with."""

    #: One line: what it does.
    description: str
    schedule: Schedule


#: By name.
BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "fifo": Baseline(
            description="first in, first out; a job that does not fit keeps everybody behind it waiting", schedule=fifo
        ),
        "first-fit": Baseline(description="each job that fits starts: backfill without a reservation", schedule=first_fit),
        "srtf": Baseline(description="shortest remaining time first; preemptive, knows run times", schedule=shortest_time),
        "srsf": Baseline(
            description="shortest remaining time x GPUs first; preemptive, knows run times", schedule=shortest_service
        ),
        "tiresias": Baseline(
            description="least attained GPU time first, in 3 queues (Tiresias-LAS); preemptive, knows no run times",
            schedule=tiresias,
        ),
    }
)


def simulate_baseline(
    name: str,
    trace: Trace,
    cluster: Cluster,
    *,
    progress: Callable[[float], None] | None = None,
    pieces: Callable[[Piece], None] | None = None,
    move: float = 0.0,
) -> Outcome:
    """Run `trace` on `cluster` under the policy `name` of `BASELINES`.

    Only GPUs bind; cpus, memory, walltimes and accounts are not looked at. A job without GPUs has nothing to wait for: it runs
    when it is submitted. One that asks for more GPUs than there are is refused. `progress` gets the fraction of jobs that
    have ended, about `STEPS` times; `pieces` every stretch for which a job had its GPUs, when the stretch is over.
    A job that was stopped has its GPUs for `move` seconds before it goes on.

    Raises `Invalid` when there is no such policy and when the jobs of the trace are not in the order of submission.
    """
    if name not in BASELINES:
        raise Invalid(f"There is no baseline named {name!r}.", remedy=f"Name one of: {', '.join(BASELINES)}.")
    _check_order(trace)
    refused = [(job.id, _refusal(job, cluster)) for job in trace.jobs if job.gpus > cluster.gpus]
    runs: dict[int, Run] = {}
    courses: list[Course] = []
    for job in trace.jobs:
        if job.gpus == 0:
            runs[job.id] = Run(job.id, job.user, 0, job.submitted, job.submitted, job.submitted + job.duration, job.duration)
        elif job.gpus <= cluster.gpus:
            courses.append(Course(job, pieces, move))
    total = len(runs) + len(courses)
    step = -(-total // STEPS)
    for run in BASELINES[name].schedule(courses, cluster):
        runs[run.id] = run
        if progress is not None and len(runs) % step == 0 and len(runs) < total:
            progress(len(runs) / total)
    if progress is not None:
        progress(1.0)
    return Outcome(
        policy=name,
        trace=trace.name,
        gpus=cluster.gpus,
        runs=[runs[job.id] for job in trace.jobs if job.id in runs],
        refused=refused,
    )


def _check_order(trace: Trace) -> None:
    for before, job in pairwise(trace.jobs):
        if job.submitted < before.submitted:
            fact = f"{trace.name}: job {job.id} of {job.submitted:g} s comes after job {before.id} of {before.submitted:g} s."
            raise Invalid(fact, remedy="Sort the jobs by the time of submission.")


def _refusal(job: TraceJob, cluster: Cluster) -> str:
    return f"needs {job.gpus} GPUs; the cluster has {cluster.gpus}"
