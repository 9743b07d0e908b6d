"""What may happen: how long the jobs run, once for each of a few courses of events that are equally likely.

Nothing is drawn at random. The logarithm of a run time is made of three parts, as in a model with random effects: one that all
jobs of the lab have in common, one of its kin (the jobs that its owner gave the same name), and one of its own. What is unknown
of all stays unknown however many jobs are in line; what is only the job's own evens out, so that a queue of n jobs takes about n
times their mean. In each scenario every part is in another ninth of what it may be, and which one differs from name to name and
from job to job, by their names and numbers alone. Of nine scenarios and what really happens, any order is as likely as any
other; so what really happens is between the first and the last in eight cases of ten, as far as only run times are unknown.
`benchmarks/start_ranges.py` says in how many it is, and `calibration` corrects what is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log, pow, sqrt
from statistics import NormalDist
from zlib import crc32

from carrel.core.domain.expectation import Expect, Expected
from carrel.core.domain.placement import Holding, Waiting

#: How many there are.
SCENARIOS = 9
#: Steps that visit all nine ninths.
_STEPS = (1, 2, 4, 5, 7, 8)
_NORMAL = NormalDist()
#: The 90 % quantile of a normal distribution.
_TENTH = _NORMAL.inv_cdf(0.9)
#: The middles of nine ninths of it.
_REACHES = [_NORMAL.inv_cdf((ninth + 0.5) / SCENARIOS) for ninth in range(SCENARIOS)]


class Expectations:
    """What is expected of every job of a lab, asked for once."""

    def __init__(self, holding: Iterable[Holding], now: float, expect: Expect) -> None:
        self._expect = expect
        self._now = now
        self._waiting: dict[int, Expected | None] = {}
        self._remaining = {held.id: self._of_held(held) for held in holding}

    def of(self, job: Waiting) -> Expected | None:
        """How long a job will run that waits."""
        if job.id not in self._waiting:
            self._waiting[job.id] = self._expect(job.owner, job.name, job.resources.time, 0.0)
        return self._waiting[job.id]

    def remaining(self, held: Holding) -> Expected | None:
        """How long a job will run on that runs already."""
        return self._remaining.get(held.id)

    @property
    def any_known(self) -> bool:
        """True when something is expected of a job that runs."""
        return any(expected is not None for expected in self._remaining.values())

    def _of_held(self, held: Holding) -> Expected | None:
        elapsed = 0.0 if held.started_at is None else max(0.0, self._now - held.started_at - held.paused)
        if held.open_ended or elapsed >= held.resources.time:
            return None
        return self._expect(held.owner, held.name, held.resources.time, elapsed)


class Scenario:
    """One course of events."""

    def __init__(self, number: int, expectations: Expectations, now: float) -> None:
        self._number = number
        self._expectations = expectations
        self._now = now

    def end(self, held: Holding) -> float:
        """When a job ends that runs already."""
        expected = self._expectations.remaining(held)
        if expected is None:
            return held.ends_by
        return min(held.ends_by, self._now + self._seconds(held.id, f"{held.owner}\n{held.name}", expected))

    def seconds(self, job: Waiting) -> float:
        """How long a job runs that waits."""
        expected, limit = self._expectations.of(job), job.resources.time
        return limit if expected is None else min(limit, self._seconds(job.id, f"{job.owner}\n{job.name}", expected))

    def _seconds(self, job_id: int, key: str, expected: Expected) -> float:
        kin = expected.kin or key
        own = 1 - expected.common - expected.common_to_all
        reach = sqrt(expected.common_to_all) * _REACHES[self._number]
        reach += sqrt(expected.common) * _reach(self._number, _hash(kin))
        reach += sqrt(max(0.0, own)) * _reach(self._number, _hash(f"{job_id}\n{kin}"))
        return _at(expected, reach)


def _hash(text: str) -> int:
    return crc32(text.encode())


def _reach(number: int, key: int) -> float:
    """Return how far from the middle this is in a scenario, in standard deviations: another ninth in each."""
    step = _STEPS[key % len(_STEPS)]
    return _REACHES[(number * step + key // len(_STEPS)) % SCENARIOS]


def _at(expected: Expected, reach: float) -> float:
    """Return the seconds at this distance from the middle."""
    if expected.ladder:
        return _rung(expected.ladder, _NORMAL.cdf(reach))
    median, other = max(expected.median, 1.0), max(expected.low if reach < 0 else expected.high, 1.0)
    return exp(log(median) + abs(reach) / _TENTH * log(other / median))


def _rung(ladder: Sequence[float], probability: float) -> float:
    """Return the quantile at `probability`, in logarithms on a straight line between rungs."""
    place = min(max(probability * len(ladder) - 0.5, 0.0), len(ladder) - 1.0)
    below = min(int(place), len(ladder) - 2)
    low, high = max(ladder[below], 1.0), max(ladder[below + 1], 1.0)
    return low * pow(high / low, place - below)
