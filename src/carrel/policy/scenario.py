"""What may happen: how long the jobs run, once for each of a few courses of events that are equally likely.

Nothing is drawn at random. In each scenario the jobs of one owner with one name run for another ninth of what is expected of
them, and which one in which scenario differs from name to name, so that short and long runs are mixed as they would be. Of nine
scenarios and what really happens, any order is as likely as any other; so what really happens is between the first and the last
in eight cases of ten. `benchmarks/start_ranges.py` says in how many it is.
"""

from __future__ import annotations

from math import exp, log
from statistics import NormalDist
from zlib import crc32

from carrel.domain.expectation import Expect, Expected
from carrel.domain.placement import Holding, Snapshot, Waiting

#: How many there are.
SCENARIOS = 9
#: Steps that visit all nine ninths.
_STEPS = (1, 2, 4, 5, 7, 8)
#: How far the middle of each ninth is from the median, where the 10 % and the 90 % quantile are at -1 and 1: as in a normal
#: distribution, so that the shortest of many jobs can be as short as it would be.
_REACHES = [NormalDist().inv_cdf((ninth + 0.5) / SCENARIOS) / NormalDist().inv_cdf(0.9) for ninth in range(SCENARIOS)]


class Expectations:
    """What is expected of every job of a snapshot, asked for once."""

    def __init__(self, snapshot: Snapshot, now: float, expect: Expect) -> None:
        self._expect = expect
        self._now = now
        self._waiting: dict[int, Expected | None] = {}
        self._remaining = {held.id: self._of_held(held) for held in snapshot.holding}

    def of(self, job: Waiting) -> Expected | None:
        """How long a job will run that waits."""
        if job.id not in self._waiting:
            self._waiting[job.id] = self._expect(job.owner, job.name, job.resources.time, 0.0)
        return self._waiting[job.id]

    def remaining(self, held: Holding) -> Expected | None:
        """How long a job will run on that runs already."""
        return self._remaining[held.id]

    @property
    def any_known(self) -> bool:
        """True when something is expected of a job that runs."""
        return any(expected is not None for expected in self._remaining.values())

    def _of_held(self, held: Holding) -> Expected | None:
        elapsed = 0.0 if held.started_at is None else max(0.0, self._now - held.started_at)
        if elapsed >= held.resources.time:
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
        return min(held.ends_by, self._now + self._seconds(_key(held.owner, held.name), expected))

    def seconds(self, job: Waiting) -> float:
        """How long a job runs that waits."""
        expected, limit = self._expectations.of(job), job.resources.time
        return limit if expected is None else min(limit, self._seconds(_key(job.owner, job.name), expected))

    def _seconds(self, key: int, expected: Expected) -> float:
        step = _STEPS[key % len(_STEPS)]
        return _at(expected, _REACHES[(self._number * step + key) % SCENARIOS])


def _key(owner: str, name: str) -> int:
    """Jobs of one owner with one name are all short or all long in a scenario: what is not known of one is not known of all."""
    return crc32(f"{owner}\n{name}".encode())


def _at(expected: Expected, reach: float) -> float:
    """Return the seconds at this distance from the median, in logarithms."""
    median, other = max(expected.median, 1.0), max(expected.low if reach < 0 else expected.high, 1.0)
    return exp(log(median) + abs(reach) * log(other / median))
