"""What a simulation is judged by, computed from its outcome. Pure.

Percentiles are by nearest rank: the smallest value that so many of all values do not exceed. The median is the 50th.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from statistics import fmean

from carrel.simulate.trace import Outcome, Run, Trace

#: Shorter jobs are taken to be this many seconds long where their slowdown is computed, or they would drown all others
#: (D. Feitelson, "Metrics for Parallel Job Scheduling and Their Convergence", JSSPP 2001).
SHORTEST_JOB = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How values are spread."""

    mean: float
    median: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMeasures:
    """How it went for the jobs of one user."""

    user: str
    jobs: int
    gpu_hours: float
    mean_wait_seconds: float
    #: From submission to end.
    mean_completion_seconds: float
    mean_bounded_slowdown: float
    #: Finish-time fairness (`equal_part`): 1 or less where they would be no better off alone; None when that is not known.
    finish_time_fairness: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """How it went under one policy, by the names of the JSON. What cannot be computed, since nothing ran, is None."""

    policy: str
    trace: str
    #: GPUs that there were.
    gpus: int
    #: That ran to their end.
    jobs: int
    #: That could never start.
    refused: int
    #: From the first submission to the last end.
    makespan_seconds: float
    #: In line: before the first start, and after each time that a job was stopped.
    wait_seconds: Spread | None
    #: From submission to end (JCT).
    completion_seconds: Spread | None
    #: From submission to end, divided by the run time, which is taken to be `SHORTEST_JOB` at least; never less than 1.
    bounded_slowdown: Spread | None
    #: Share of all GPUs that was in use from the first submission to the last end. A policy that starts one long job late has a
    #: low one, however full the machines were before.
    utilisation: float | None
    #: The same up to the last submission: the one to compare policies by.
    utilisation_while_submitting: float | None
    #: GPU-hours for which jobs had GPUs.
    gpu_hours: float
    #: GPU-hours that jobs ran beyond their durations, because work was lost.
    gpu_hours_lost: float
    #: How often jobs were stopped or suspended.
    preemptions: int
    #: Of the user who has most reason to want a part of the lab for themselves; None when not known.
    finish_time_fairness: float | None
    #: Most GPU-hours first; equals by name.
    users: Sequence[UserMeasures]


def measure(outcome: Outcome, trace: Trace, *, alone: Mapping[int, float] | None = None) -> Measures:
    """Compute what the `outcome` of `trace` is judged by.

    Lost work is counted separately from needed work: it is no run time in the slowdown. A job that was cut short needed what it
    ran. `alone` is what `equal_part.completions_alone` says; without it there is no fairness.
    """
    runs = outcome.runs
    durations = {job.id: job.duration for job in trace.jobs}
    needed = [min(run.ran, durations[run.id]) for run in runs]
    slowdowns = [slowdown_of(run.completion, seconds) for run, seconds in zip(runs, needed, strict=True)]
    users = _by_user(runs, slowdowns, alone)
    begin = min((run.submitted for run in runs), default=0.0)
    last = max((run.submitted for run in runs), default=0.0)
    end = max((run.end for run in runs), default=0.0)
    used = fsum(run.gpus * run.ran for run in runs)
    return Measures(
        policy=outcome.policy,
        trace=outcome.trace,
        gpus=outcome.gpus,
        jobs=len(runs),
        refused=len(outcome.refused),
        makespan_seconds=end - begin,
        wait_seconds=spread([run.wait for run in runs]),
        completion_seconds=spread([run.completion for run in runs]),
        bounded_slowdown=spread(slowdowns),
        utilisation=used / (outcome.gpus * (end - begin)) if outcome.gpus and end > begin else None,
        utilisation_while_submitting=utilisation(outcome, begin, last),
        gpu_hours=used / 3600,
        gpu_hours_lost=fsum(run.gpus * (run.ran - seconds) for run, seconds in zip(runs, needed, strict=True)) / 3600,
        preemptions=sum(run.preemptions for run in runs),
        finish_time_fairness=max(
            (user.finish_time_fairness for user in users if user.finish_time_fairness is not None), default=None
        ),
        users=users,
    )


def spread(values: Sequence[float]) -> Spread | None:
    """Return how `values` are spread; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        mean=fmean(ordered),
        median=percentile(ordered, 0.5),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        max=ordered[-1],
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest of `values` that at least this `share` of them do not exceed (nearest rank); 0 where there are none."""
    return sorted(values)[max(0, ceil(share * len(values) - 1e-9) - 1)] if values else 0.0


def slowdown_of(completion: float, ran: float) -> float:
    """Return how much longer a job took from submission to end than it ran; both in seconds (Feitelson 2001)."""
    return max(1.0, completion / max(ran, SHORTEST_JOB))


def utilisation(outcome: Outcome, begin: float, end: float) -> float | None:
    """Share of all GPU time from `begin` to `end` in which jobs had GPUs.

    Of a job that was stopped only the sum is known: it is taken to have had its GPUs evenly from start to end.
    """
    if not outcome.gpus or end <= begin:
        return None
    used = fsum(
        run.gpus * run.ran * (min(run.end, end) - run.start) / (run.end - run.start)
        for run in outcome.runs
        if run.start < min(run.end, end)
    )
    return min(1.0, used / (outcome.gpus * (end - begin)))


def _by_user(runs: Sequence[Run], slowdowns: Sequence[float], alone: Mapping[int, float] | None) -> Sequence[UserMeasures]:
    members: dict[str, list[tuple[Run, float]]] = {}
    for run, slowdown in zip(runs, slowdowns, strict=True):
        members.setdefault(run.user, []).append((run, slowdown))
    users = []
    for user, own in members.items():
        known = [] if alone is None else [(run.completion, alone[run.id]) for run, _ in own if run.id in alone]
        by_themselves = fsum(seconds for _, seconds in known)
        users.append(
            UserMeasures(
                user=user,
                jobs=len(own),
                gpu_hours=fsum(run.gpus * run.ran for run, _ in own) / 3600,
                mean_wait_seconds=fmean(run.wait for run, _ in own),
                mean_completion_seconds=fmean(run.completion for run, _ in own),
                mean_bounded_slowdown=fmean(slowdown for _, slowdown in own),
                finish_time_fairness=fsum(seconds for seconds, _ in known) / by_themselves if by_themselves else None,
            )
        )
    return sorted(users, key=lambda user: (-user.gpu_hours, user.user))
