"""How long a job will run, learned from jobs that have ended.

A range between the 10 % and the 90 % quantile holds 80 % of what comes next only where quantiles are taken with a correction for
how few were seen: of n jobs and one more, any order is as likely as any other, so the next is at most the k-th shortest of them
with probability k / (n + 1) (conformal prediction: V. Vovk, A. Gammerman and G. Shafer, "Algorithmic Learning in a Random
World", 2005). From 9 jobs on both quantiles lie between jobs that were seen. Fewer say nothing about what is beyond them;
there a rank is taken to be as wide as two average ones between them, in logarithms, and never less than if the longest had been
`LEAST` times the shortest. For 3 to 8 jobs that makes 80 % of a log-normal distribution to within 2 %, and more of bounded ones.

All this takes the next job to be like those before. An owner who changes what runs under a name is not covered until the newest
jobs say so.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from math import floor, isfinite, pow
from typing import TypeVar

from carrel.domain.errors import Invalid
from carrel.domain.expectation import Expected

#: Observations that are kept of one name.
NEWEST = 64
#: The same of an owner, and of everybody.
NEWEST_SHARES = 256
#: Names, and owners, that are remembered; the one goes that was not observed for the longest time.
KEYS = 50_000
#: From how many observations on the jobs of a name, and of an owner, speak for themselves.
NAME_SPEAKS, OWNER_SPEAKS = 3, 10
#: From how many on a spread can be measured at all.
FEWEST = 3
#: Jobs that all ran equally long, but are few, are treated as if the longest had run so many times as long as the shortest.
LEAST = 1.5
_LOW, _HIGH = 0.1, 0.9
_Key = TypeVar("_Key")


class RunTimes:
    """What is known about the run times of everybody's jobs.

    Three histories answer, the first that knows enough: the jobs of the owner with that name (`NAME_SPEAKS` or more), in
    seconds; the owner's jobs (`OWNER_SPEAKS` or more), and then everybody's (`FEWEST` or more), as shares of their walltime. The
    two that hold shares are asked about names that are new, so only the first `NAME_SPEAKS` jobs of each name are in them: a
    thousand repeats of one experiment say little about the next one.

    A job that was cut off by its walltime would have run for longer, nobody knows for how long. It counts with what it ran for in
    `low`, and in `median` and `high` as if it ran to the end of whatever is asked for next.

    Answers depend on the order of observations only where a history is full, through which jobs are the first of their name, and
    through which keys are forgotten.
    """

    def __init__(self, *, keys: int = KEYS) -> None:
        self._keys = keys
        self._names: OrderedDict[tuple[str, str], _History] = OrderedDict()
        self._owners: OrderedDict[str, _History] = OrderedDict()
        self._everybody = _History(NEWEST_SHARES)

    def observe(self, owner: str, name: str, seconds: float, limit: float) -> None:
        """A job has ended that ran for `seconds` of the `limit` that it asked for; one that reached it was cut off.

        Raises `Invalid` for a negative time and for a limit that is not above 0.
        """
        _check(limit, seconds)
        # Logarithms want more than 0, and below one second nobody plans.
        seconds, cut = max(seconds, 1.0), seconds >= limit
        history = self._of(self._names, (owner, name), NEWEST)
        if history.seen < NAME_SPEAKS:
            share = min(seconds / limit, 1.0)
            self._of(self._owners, owner, NEWEST_SHARES).add(share, cut=cut)
            self._everybody.add(share, cut=cut)
        history.add(seconds, cut=cut)

    def expect(self, owner: str, name: str, limit: float) -> Expected | None:
        """Return how long a job will run that asks for `limit` seconds, never more; None while too few jobs have ended.

        Raises `Invalid` for a limit that is not above 0.
        """
        return self.remaining(owner, name, limit, 0.0)

    def remaining(self, owner: str, name: str, limit: float, elapsed: float) -> Expected | None:
        """Return how long a job will run on that has run for `elapsed` of `limit` seconds, never more than what is left of these.

        Learned from jobs that ran for longer than that; None when there are too few. Raises `Invalid` as `observe` does.
        """
        _check(limit, elapsed)
        if elapsed >= limit:
            return Expected(0.0, 0.0, 0.0, 0)
        for history, least, unit in (
            (self._names.get((owner, name)), NAME_SPEAKS, 1.0),
            (self._owners.get(owner), OWNER_SPEAKS, limit),
            (self._everybody, FEWEST, limit),
        ):
            longer = history.beyond(elapsed, unit) if history is not None else ()
            if len(longer) >= least:
                return _expected(longer, limit, elapsed)
        return None

    def _of(self, histories: OrderedDict[_Key, _History], key: _Key, newest: int) -> _History:
        history = histories.get(key)
        if history is None:
            history = histories[key] = _History(newest)
            if len(histories) > self._keys:
                histories.popitem(last=False)
        else:
            histories.move_to_end(key)
        return history


class _History:
    """The newest of some observations, in one array: those of jobs that were cut off are negative."""

    __slots__ = ("_newest", "_values", "seen")

    def __init__(self, newest: int) -> None:
        self._newest = newest
        self._values = array("d")
        #: How many there have been, also those that are no longer kept.
        self.seen = 0

    def add(self, value: float, *, cut: bool) -> None:
        """Keep one; the oldest goes."""
        if self.seen < self._newest:
            self._values.append(-value if cut else value)
        else:
            self._values[self.seen % self._newest] = -value if cut else value
        self.seen += 1

    def beyond(self, seconds: float, unit: float) -> Sequence[float]:
        """Return those that are more than `seconds` when one is `unit` seconds, in seconds and in no order."""
        return [value * unit for value in self._values if abs(value) * unit > seconds]


def _expected(values: Sequence[float], limit: float, elapsed: float) -> Expected:
    """Return what remains by these, which are all beyond `elapsed`; those of jobs that were cut off are negative."""
    ran = sorted(map(abs, values))
    would_run = sorted(limit if value < 0 else min(value, limit) for value in values)
    low, median, high = (
        min(max(total, elapsed), limit) - elapsed
        for total in (_quantile(ran, _LOW), _quantile(would_run, 0.5), _quantile(would_run, _HIGH))
    )
    return Expected(median=median, low=min(low, median), high=max(high, median), of=len(values))


def _quantile(ordered: Sequence[float], probability: float) -> float:
    """Return the value at rank ``probability * (n + 1)``, in logarithms on a straight line between neighbours."""
    count = len(ordered)
    rank = probability * (count + 1)
    if 1 <= rank < count:
        below = floor(rank)
        low, high = ordered[below - 1], ordered[below]
        return low * pow(high / low, rank - below)
    if rank == count:
        return ordered[-1]
    step = pow(max(ordered[-1] / ordered[0], LEAST), 2 / max(count - 1, 1))
    return ordered[0] * pow(step, rank - 1) if rank < 1 else ordered[-1] * pow(step, rank - count)


def _check(limit: float, seconds: float) -> None:
    if not (isfinite(limit) and limit > 0):
        raise Invalid(f"The walltime is {limit:g} s.", remedy="Give a number above 0.")
    if not (isfinite(seconds) and seconds >= 0):
        raise Invalid(f"A job ran for {seconds:g} s.", remedy="Give 0 s or more.")
