"""What a simulation is judged by, computed from its outcome. Pure.

Percentiles are by nearest rank: the smallest value that so many of all values do not exceed. The median is the 50th.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import fsum
from statistics import fmean
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.simulate.baselines import Piece
from carrel.simulate.notebooks.result import percentile
from carrel.simulate.outcome import Outcome, Run
from carrel.simulate.trace import Trace
from carrel.simulate.usage import gpu_seconds, stretches

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
    #: Seconds.
    mean_wait: float
    #: Seconds from submission to end.
    mean_completion: float
    #: Bounded slowdown.
    mean_slowdown: float
    #: Finish-time fairness (`equal_part`): 1 or less where they would be no better off alone; None when that is not known.
    finish_time_fairness: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """How it went under one policy. What cannot be computed, because nothing ran or no time passed, is None."""

    policy: str
    trace: str
    #: GPUs that there were.
    gpus: int
    #: That ran to their end.
    jobs: int
    #: That could never start.
    refused: int
    #: Seconds from the first submission to the last end.
    makespan: float
    #: Seconds in line: before the first start, and after each time that a job was stopped.
    waits: Spread | None
    #: Seconds from submission to end (JCT).
    completions: Spread | None
    #: From submission to end, divided by the run time, which is taken to be `SHORTEST_JOB` at least; never less than 1.
    slowdown: Spread | None
    #: Share of all GPUs that was in use from the first submission to the last end. A policy that starts one long job late has a
    #: low one, however full the machines were before.
    utilisation: float | None
    #: The same up to the last submission: the one to compare policies by.
    utilisation_while_submitting: float | None
    #: GPU-hours for which jobs had GPUs.
    gpu_hours: float
    #: GPU-hours that jobs ran beyond their durations, because work was lost; None when the durations are not known.
    gpu_hours_lost: float | None
    #: How often jobs were stopped or suspended.
    preemptions: int
    #: Most GPU-hours first; equals by name.
    users: Sequence[UserMeasures]
    #: Finish-time fairness of the user who has most reason to want a part of the lab for themselves; None when not known.
    fairness: float | None


def measure(
    outcome: Outcome,
    trace: Trace | None = None,
    *,
    pieces: Sequence[Piece] | None = None,
    alone: Mapping[int, float] | None = None,
) -> Measures:
    """Compute what `outcome` is judged by.

    With the `trace` that was simulated, lost work is counted separately from needed work: it counts as lost and not as
    run time in the slowdown. A job that was cut short needed what it ran. `pieces` make the utilisation up to the last
    submission exact where jobs were stopped on the way; without them it is estimated (see `usage`). `alone` is what
    `equal_part.completions_alone` says; without it there is no fairness.

    Raises `Invalid` when a job of the outcome is not in the trace.
    """
    runs = outcome.runs
    needed = _needed(outcome, trace)
    slowdowns = [bounded_slowdown(run.completion, seconds) for run, seconds in zip(runs, needed, strict=True)]
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
        makespan=end - begin,
        waits=spread([run.wait for run in runs]),
        completions=spread([run.completion for run in runs]),
        slowdown=spread(slowdowns),
        utilisation=used / (outcome.gpus * (end - begin)) if outcome.gpus and end > begin else None,
        utilisation_while_submitting=_utilisation(outcome, pieces, begin, last),
        gpu_hours=used / 3600,
        gpu_hours_lost=None if trace is None else _lost(runs, needed) / 3600,
        preemptions=sum(run.preemptions for run in runs),
        users=users,
        fairness=max((user.finish_time_fairness for user in users if user.finish_time_fairness is not None), default=None),
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


def bounded_slowdown(completion: float, ran: float) -> float:
    """Return how much longer a job took from submission to end than it ran; both in seconds (Feitelson 2001)."""
    return max(1.0, completion / max(ran, SHORTEST_JOB))


def together(users: Sequence[UserMeasures], name: str) -> UserMeasures:
    """Several users as if they were one; there must be one at least."""
    jobs = sum(user.jobs for user in users)
    return UserMeasures(
        user=name,
        jobs=jobs,
        gpu_hours=fsum(user.gpu_hours for user in users),
        mean_wait=fsum(user.jobs * user.mean_wait for user in users) / jobs,
        mean_completion=fsum(user.jobs * user.mean_completion for user in users) / jobs,
        mean_slowdown=fsum(user.jobs * user.mean_slowdown for user in users) / jobs,
    )


def utilisation_over_time(
    outcome: Outcome, points: int = 400, *, pieces: Sequence[Piece] | None = None
) -> Sequence[tuple[float, float]]:
    """Return pairs of a moment and the share of all GPUs that was in use around it.

    The time from the first submission to the last end is divided into `points` equal parts; the moments (seconds after the
    beginning of the trace) are their middles, the shares their means. Exact with the `pieces` in which the jobs ran, and where
    no job was stopped on the way; else estimated (see `usage`).

    Raises `Invalid` for less than one point.
    """
    if points < 1:
        raise Invalid(f"The time is to be divided into {points} parts.", remedy="Ask for 1 or more.")
    begin = min((run.submitted for run in outcome.runs), default=0.0)
    end = max((run.end for run in outcome.runs), default=0.0)
    if not outcome.gpus or end <= begin:
        return []
    edges = [begin + (end - begin) * index / points for index in range(points)] + [end]
    used = gpu_seconds(stretches(outcome.runs, pieces), outcome.gpus, edges)
    return [
        ((before + after) / 2, seconds / (outcome.gpus * (after - before)))
        for (before, after), seconds in zip(pairwise(edges), used, strict=True)
    ]


def distribution(values: Iterable[float], points: int = 300) -> Sequence[tuple[float, float]]:
    """Return the empirical distribution: values in order, each with the share of all values that do not exceed it.

    Every value once when there are at most `points` different ones; else about as many, at equal distances by rank, the
    smallest and the largest among them.
    """
    if points < 2:
        raise Invalid(f"The distribution is to have {points} points.", remedy="Ask for 2 or more.")
    ordered = sorted(values)
    count = len(ordered)
    steps = {value: (index + 1) / count for index, value in enumerate(ordered)}
    if len(steps) <= points:
        return list(steps.items())
    ranks = (round(step * (count - 1) / (points - 1)) for step in range(points))
    return [(value, steps[value]) for value in dict.fromkeys(ordered[rank] for rank in ranks)]


def as_json(measures: Measures) -> dict[str, Any]:
    """Plain data, with the units in the names; what is None there is null here."""
    return {
        "policy": measures.policy,
        "trace": measures.trace,
        "gpus": measures.gpus,
        "jobs": measures.jobs,
        "refused": measures.refused,
        "makespan_seconds": measures.makespan,
        "wait_seconds": spread_as_json(measures.waits),
        "completion_seconds": spread_as_json(measures.completions),
        "bounded_slowdown": spread_as_json(measures.slowdown),
        "utilisation": measures.utilisation,
        "utilisation_while_submitting": measures.utilisation_while_submitting,
        "gpu_hours": measures.gpu_hours,
        "gpu_hours_lost": measures.gpu_hours_lost,
        "preemptions": measures.preemptions,
        "finish_time_fairness": measures.fairness,
        "users": [
            {
                "user": user.user,
                "jobs": user.jobs,
                "gpu_hours": user.gpu_hours,
                "mean_wait_seconds": user.mean_wait,
                "mean_completion_seconds": user.mean_completion,
                "mean_bounded_slowdown": user.mean_slowdown,
                "finish_time_fairness": user.finish_time_fairness,
            }
            for user in measures.users
        ],
    }


def spread_as_json(values: Spread | None) -> dict[str, float] | None:
    """Plain data; the unit is that of the values."""
    return None if values is None else asdict(values)


def _needed(outcome: Outcome, trace: Trace | None) -> Sequence[float]:
    """Seconds that each job had to run."""
    if trace is None:
        return [run.ran for run in outcome.runs]
    durations = {job.id: job.duration for job in trace.jobs}
    for run in outcome.runs:
        if run.id not in durations:
            fact = f"Job {run.id} of the outcome of {outcome.policy} is not in the trace {trace.name}."
            raise Invalid(fact, remedy="Give the trace that was simulated.")
    return [min(run.ran, durations[run.id]) for run in outcome.runs]


def _lost(runs: Sequence[Run], needed: Sequence[float]) -> float:
    return fsum(run.gpus * (run.ran - seconds) for run, seconds in zip(runs, needed, strict=True))


def _utilisation(outcome: Outcome, pieces: Sequence[Piece] | None, begin: float, end: float) -> float | None:
    if not outcome.gpus or end <= begin:
        return None
    used = gpu_seconds(stretches(outcome.runs, pieces), outcome.gpus, [begin, end])
    return used[0] / (outcome.gpus * (end - begin))


def _by_user(runs: Sequence[Run], slowdowns: Sequence[float], alone: Mapping[int, float] | None) -> Sequence[UserMeasures]:
    members: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        members.setdefault(run.user, []).append(index)
    users = [
        _of_user(user, [runs[at] for at in indices], [slowdowns[at] for at in indices], alone)
        for user, indices in members.items()
    ]
    return sorted(users, key=lambda user: (-user.gpu_hours, user.user))


def _of_user(user: str, runs: Sequence[Run], slowdowns: Sequence[float], alone: Mapping[int, float] | None) -> UserMeasures:
    return UserMeasures(
        user=user,
        jobs=len(runs),
        gpu_hours=fsum(run.gpus * run.ran for run in runs) / 3600,
        mean_wait=fmean(run.wait for run in runs),
        mean_completion=fmean(run.completion for run in runs),
        mean_slowdown=fmean(slowdowns),
        finish_time_fairness=None if alone is None else _ratio(runs, alone),
    )


def _ratio(runs: Sequence[Run], alone: Mapping[int, float]) -> float | None:
    """All time of these jobs over what it would be on an equal part."""
    known = [run for run in runs if run.id in alone]
    by_themselves = fsum(alone[run.id] for run in known)
    return fsum(run.completion for run in known) / by_themselves if by_themselves else None
