"""When jobs are submitted: in bursts, and more in some hours of the week than in others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random

from carrel.core.domain.errors import Invalid
from generator.quantiles import Quantiles, measure_quantiles

HOUR = 3600.0
HOURS = 168
WEEK = HOURS * HOUR
#: From how many weeks on a trace says something about the hours of the week.
WEEKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A renewal process, on a clock that runs faster in busy hours: bursts are as dense as they were, and come when they came.

    Gaps are independent of each other. Where short gaps follow short ones, bursts are longer than here.
    """

    #: Seconds from one submission to the next, as they would be if all hours were alike.
    gaps: Quantiles
    #: For each hour of the week its rate as a multiple of the average, the hour in which the trace begins first. Empty where all
    #: hours are taken to be alike.
    week: Sequence[float] = ()

    def __post_init__(self) -> None:
        if len(self.week) not in (0, HOURS):
            raise Invalid(f"There are rates of {len(self.week)} hours.", remedy=f"Give {HOURS}, or none.")
        if not all(rate > 0 for rate in self.week):
            raise Invalid("The rate of an hour of the week is not above 0.", remedy="Give rates above 0.")

    def draw(self, random: Random, jobs: int, span: float | None = None) -> Sequence[float]:
        """Return when each of `jobs` is submitted: seconds, in order, the first at 0.

        With a `span` the last of two or more is submitted then; otherwise about as many come in a week as were measured.
        """
        even = list(accumulate((self.gaps.draw(random) for _ in range(jobs - 1)), initial=0.0))
        clock = _WeekClock(self.week)
        if span is not None:
            if even[-1] == 0:  # Everything was submitted at once: there are no proportions to keep.
                even = [float(number) for number in range(jobs)]
            scale = clock.even(span) / even[-1]
            even = [at * scale for at in even]
        return [clock.wall(at) for at in even]


def fit_arrivals(submitted: Sequence[float]) -> Arrivals:
    """Measure times of submission, in order; hours of the week are counted separately from `WEEKS` weeks on."""
    times = [at - submitted[0] for at in submitted]
    week = _week(times) if times[-1] >= WEEKS * WEEK else ()
    clock = _WeekClock(week)
    return Arrivals(
        gaps=measure_quantiles(after - before for before, after in pairwise(map(clock.even, times))),
        week=week,
    )


class _WeekClock:
    """Turns seconds into those that would have passed if all hours of the week were alike, and back."""

    def __init__(self, week: Sequence[float]) -> None:
        self._week = week or (1.0,) * HOURS
        self._passed = list(accumulate((rate * HOUR for rate in self._week), initial=0.0))

    def even(self, wall: float) -> float:
        """Return the even seconds after so many."""
        weeks, rest = divmod(wall, WEEK)
        hour = min(int(rest // HOUR), HOURS - 1)
        return weeks * self._passed[-1] + self._passed[hour] + (rest - hour * HOUR) * self._week[hour]

    def wall(self, even: float) -> float:
        """Return the seconds after so many even ones."""
        weeks, rest = divmod(even, self._passed[-1])
        hour = min(bisect_right(self._passed, rest) - 1, HOURS - 1)
        return weeks * WEEK + hour * HOUR + (rest - self._passed[hour]) / self._week[hour]


def _week(times: Sequence[float]) -> Sequence[float]:
    """Return the rate in each hour of the week over the average.

    As if there had been one more week, an average one: an hour in which nobody happened to submit is a quiet one, not one in
    which nobody ever will.
    """
    weeks, rest = divmod(times[-1], WEEK)
    average = (len(times) - 1) / times[-1] * HOUR
    counts = [0] * HOURS
    for at in times[:-1]:  # The hour of the last one had only begun.
        counts[int(at // HOUR) % HOURS] += 1
    rates = []
    for hour, count in enumerate(counts):
        seen = weeks + min(max(rest / HOUR - hour, 0.0), 1.0)
        rates.append((count + average) / (seen + 1))
    mean = sum(rates) / HOURS
    return tuple(round(rate / mean, 4) for rate in rates)
