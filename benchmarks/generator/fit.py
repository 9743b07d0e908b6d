"""What the jobs of a lab look like, in a few hundred numbers: measured from a trace, and drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Trace, TraceJob
from generator.arrivals import Arrivals, fit_arrivals
from generator.people import People, fit_people
from generator.quantiles import Quantiles, measure_quantiles
from generator.walltimes import EVEN, fit_factors

#: Standard deviation of the logarithm of run times of one user's jobs with one name: two of three are between 0.7 and 1.4 times
#: the median. An assumption: the traces that everybody may use do not name experiments.
SPREAD = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Jobs of one number of GPUs."""

    gpus: int
    #: Of all jobs, the share that has this many.
    share: float
    #: Seconds that they run.
    durations: Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedJobs:
    """The jobs of a lab. What depends on each other beyond this is lost: users are alike but for how much they submit."""

    #: Of the trace.
    name: str
    #: Where the trace was recorded, when that is known.
    cluster: Cluster | None
    arrivals: Arrivals
    #: By number of GPUs.
    sizes: Sequence[Size]
    people: People
    #: Walltime over run time, before it is rounded up to what people write.
    factors: Quantiles = EVEN
    #: Standard deviation of the logarithm of run times of one user's jobs with one name.
    spread: float = SPREAD


def fit_jobs(trace: Trace) -> FittedJobs:
    """Measure a trace.

    Raises `Invalid` when it has fewer than two jobs, and when they are not in the order of submission.
    """
    if len(trace.jobs) < 2:
        raise Invalid(f"{trace.name} has {len(trace.jobs)} jobs.", remedy="Measure a trace of two or more.")
    for before, job in pairwise(trace.jobs):
        if job.submitted < before.submitted:
            raise Invalid(
                f"{trace.name}: job {job.id} of {job.submitted:g} s comes after job {before.id} of {before.submitted:g} s.",
                remedy="Sort the jobs by the time of submission.",
            )
    by_gpus: dict[int, list[TraceJob]] = {}
    for job in trace.jobs:
        by_gpus.setdefault(job.gpus, []).append(job)
    return FittedJobs(
        name=trace.name,
        cluster=trace.cluster,
        arrivals=fit_arrivals([job.submitted for job in trace.jobs]),
        sizes=tuple(
            Size(
                gpus=gpus,
                share=round(len(alike) / len(trace.jobs), 6),
                durations=measure_quantiles(job.duration for job in alike),
            )
            for gpus, alike in sorted(by_gpus.items())
        ),
        people=fit_people(trace.jobs),
        factors=fit_factors(trace.jobs),
    )
