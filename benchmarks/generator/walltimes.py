"""How long people say that their jobs will run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import ceil, sqrt

from carrel.simulate.trace import TraceJob
from generator.quantiles import PROBABILITIES, Quantiles, measure_quantiles

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: What people write: 30 min, 1, 2, 4, 8, 12 h, 1, 2, 3, 7 d. Beyond, whole weeks.
RUNGS = (30 * _MINUTE, *(hours * _HOUR for hours in (1, 2, 4, 8, 12)), *(days * _DAY for days in (1, 2, 3, 7)))
_WEEK = RUNGS[-1]

#: Walltime over run time where a trace does not say: run times are spread evenly between 0 and the walltime, as A. Mu'alem and
#: D. Feitelson found on several machines ("Utilization, Predictability, Workloads, and User Runtime Estimates in Scheduling
#: the IBM SP2 with Backfilling", IEEE TPDS 12(6), 2001). At most 1,000.
EVEN = Quantiles(tuple(round(1 / max(1 - probability, 0.001), 3) for probability in PROBABILITIES))


def rung(seconds: float) -> int:
    """Return the walltime that somebody writes who wants this many seconds or more."""
    place = bisect_left(RUNGS, seconds)
    return RUNGS[place] if place < len(RUNGS) else ceil(seconds / _WEEK) * _WEEK


def asked(duration: float, wish: float) -> int:
    """Return the walltime of a job whose owner wishes for `wish` seconds, at most 7 days; nobody asks for too little."""
    return rung(max(duration, min(wish, _WEEK)))


def fit_factors(jobs: Sequence[TraceJob]) -> Quantiles:
    """Measure how many times their run time jobs ask for, before it is rounded up; `EVEN` where no job says.

    Of a walltime that somebody wrote only the two ends are known between which the wish was: the rung below (or the run time)
    and the walltime itself. The middle, of logarithms, is taken. Jobs that ran for 0 s say nothing; jobs that ran into
    their walltime wished for their run time.
    """
    factors = []
    for job in jobs:
        if job.time is not None and job.duration > 0:
            low = max(job.duration, max((one for one in RUNGS if one < job.time), default=0))
            factors.append(sqrt(low * max(low, job.time)) / job.duration)
    return measure_quantiles(factors) if factors else EVEN
