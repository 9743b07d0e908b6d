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
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import floor, fsum, isfinite, log, pow
from statistics import fmean
from typing import TypeVar

from carrel.core.domain.errors import Invalid
from carrel.core.domain.expectation import Expected

#: Observations that are kept of one name.
NEWEST = 128
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
#: Shares of walltimes have to vary so much less than seconds do before a name is taken to run for a share of its walltime.
CLEARLY = 0.8
_LOW, _HIGH = 0.1, 0.9
#: Quantiles that are shown beside these two.
RUNGS = 20
#: What jobs of a name, and all of the lab, have in common as long as nothing is known, and how many jobs that guess weighs as
#: much as.
COMMON, COMMON_TO_ALL, GUESS_WEIGHS = 0.3, 0.1, 10
_Key = TypeVar("_Key")


class RunTimes:
    """What is known about the run times of everybody's jobs.

    Three histories answer, the first that knows enough: the jobs of the owner with that name (`NAME_SPEAKS` or more), in seconds
    or as shares of their walltime, whichever vary less; the owner's jobs (`OWNER_SPEAKS` or more), and then everybody's
    (`FEWEST` or more), as shares of their walltime. The last two are asked about names that are new, so only the first
    `NAME_SPEAKS` jobs of each name are in them: a thousand repeats of one experiment say little about the next one.

    Besides, it says what is not known of all jobs together: how much of what a name's run times vary by is common to those that
    run at about the same time, and how much to all jobs of the lab. Both are learned from how alike those are that end one after
    the other.

    A job that was cut off by its walltime would have run for longer, nobody knows for how long. It counts with what it ran for in
    `low`, and in `median` and `high` as if it ran to the end of all that is asked for next.

    Ranges depend on the order of observations only where a history is full, through which jobs are the first of their name, and
    through which keys are forgotten; what is common depends on it throughout.
    """

    def __init__(self, *, keys: int = KEYS) -> None:
        self._keys = keys
        self._names: OrderedDict[tuple[str, str], _History] = OrderedDict()
        self._owners: OrderedDict[str, _History] = OrderedDict()
        self._everybody = _History(NEWEST_SHARES, by_share=True)
        self._neighbours = _Neighbours()

    def observe(self, owner: str, name: str, seconds: float, limit: float) -> None:
        """A job has ended that ran for `seconds` of the `limit` that it asked for; one that reached it was cut off.

        Raises `Invalid` for a negative time and for a limit that is not above 0.
        """
        _check(limit, seconds)
        # Logarithms want more than 0, and below one second nobody plans.
        seconds, cut = max(seconds, 1.0), seconds >= limit
        history = self._of(self._names, (owner, name), NEWEST)
        if history.seen < NAME_SPEAKS:
            self._of(self._owners, owner, NEWEST_SHARES, by_share=True).add(seconds, limit, cut=cut)
            self._everybody.add(seconds, limit, cut=cut)
        history.add(seconds, limit, cut=cut)
        self._neighbours.add(owner, log(min(seconds / limit, 1.0)))

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
        for history, least, kin in (
            (self._names.get((owner, name)), NAME_SPEAKS, f"{owner}\n{name}"),
            (self._owners.get(owner), OWNER_SPEAKS, owner),
            (self._everybody, FEWEST, "\n"),
        ):
            longer = history.beyond(elapsed, limit) if history is not None else ()
            if history is not None and len(longer) >= least:
                shared = min(history.common, self._neighbours.common)
                found = _expected(longer, limit, elapsed)
                return replace(found, kin=kin, common=history.common - shared, common_to_all=shared)
        return None

    def _of(self, histories: OrderedDict[_Key, _History], key: _Key, newest: int, *, by_share: bool | None = None) -> _History:
        history = histories.get(key)
        if history is None:
            history = histories[key] = _History(newest, by_share=by_share)
            if len(histories) > self._keys:
                histories.popitem(last=False)
        else:
            histories.move_to_end(key)
        return history


class _History:
    """The newest of some run times, each with its walltime; those of jobs that were cut off are negative."""

    __slots__ = ("_by_share", "_chosen", "_common", "_known", "_limits", "_newest", "_seconds", "seen")

    def __init__(self, newest: int, *, by_share: bool | None = None) -> None:
        """`by_share`: whether jobs are alike in the share of their walltime that they run, or in seconds; None: find out."""
        self._newest = newest
        self._seconds = array("d")
        self._limits = array("d")
        #: How many there have been, also those that are no longer kept.
        self.seen = 0
        self._by_share = by_share
        #: What holds of those of which there had been so many.
        self._known = -1
        self._common, self._chosen = 0.0, False

    def add(self, seconds: float, limit: float, *, cut: bool) -> None:
        """Keep one; the oldest goes."""
        value = -seconds if cut else seconds
        if self.seen < self._newest:
            # In this order: others may read meanwhile.
            self._limits.append(limit)
            self._seconds.append(value)
        else:
            place = self.seen % self._newest
            self._seconds[place], self._limits[place] = value, limit
        self.seen += 1

    def beyond(self, elapsed: float, limit: float) -> Sequence[float]:
        """Return what jobs with this walltime would have run that run for more than `elapsed` seconds, in no order."""
        if self._shares:
            shares = (max(-1.0, min(value / of, 1.0)) for value, of in zip(self._seconds, self._limits, strict=False))
            return [share * limit for share in shares if abs(share) * limit > elapsed]
        return [value for value in self._seconds if abs(value) > elapsed]

    @property
    def common(self) -> float:
        """What jobs that run at about the same time share of the variance of the logarithms of their run times, 0 to 1.

        Those that end one after the other are as alike as their correlation says (the share of a common component is the
        correlation within its group: R. A. Fisher, "Statistical Methods for Research Workers", 1925, chapter VII). Besides,
        all have in common by how much the mean of those that were seen is off.
        """
        self._look()
        return self._common

    @property
    def _shares(self) -> bool:
        self._look()
        return self._chosen if self._by_share is None else self._by_share

    def _look(self) -> None:
        """Work out what holds of all, once after each observation."""
        if self._known == self.seen or not self.seen:
            return
        seen, kept = self.seen, len(self._seconds)
        # Oldest first.
        places = [(seen + place) % kept for place in range(kept)]
        seconds = [log(abs(self._seconds[place])) for place in places]
        shares = [log(min(abs(self._seconds[place]) / self._limits[place], 1.0)) for place in places]
        self._chosen = _variance(shares) < CLEARLY * _variance(seconds)
        by_share = self._chosen if self._by_share is None else self._by_share
        self._common = _common(shares if by_share else seconds)
        self._known = seen


class _Neighbours:
    """How alike jobs of different owners are that end one after the other: what they share is common to all of the lab."""

    def __init__(self) -> None:
        self._newest: deque[tuple[str, float]] = deque(maxlen=NEWEST_SHARES)
        self._known: float | None = None

    def add(self, owner: str, value: float) -> None:
        """A job has ended; `value` is the logarithm of the share of its walltime that it ran."""
        self._newest.append((owner, value))
        self._known = None

    @property
    def common(self) -> float:
        """The share of the variance that is common to jobs that end at about the same time, 0 to 1."""
        known = self._known
        if known is None:
            known = self._known = self._common()
        return known

    def _common(self) -> float:
        newest = list(self._newest)
        if not newest:
            return COMMON_TO_ALL
        values = [value for _, value in newest]
        mean, spread = fmean(values), _variance(values)
        pairs = [(one - mean) * (other - mean) for (whose, one), (others, other) in pairwise(newest) if whose != others]
        alike = fsum(pairs) / spread if spread > 0 else float(len(pairs))
        return min(1.0, max(0.0, (alike + COMMON_TO_ALL * GUESS_WEIGHS) / (len(pairs) + GUESS_WEIGHS)))


def _variance(values: Sequence[float]) -> float:
    mean = fmean(values)
    return fmean((value - mean) ** 2 for value in values)


def _common(logs: Sequence[float]) -> float:
    """Return what is common to neighbours, by all that were seen, oldest first."""
    mean, spread, count = fmean(logs), _variance(logs), len(logs)
    together = fsum((one - mean) * (other - mean) for one, other in pairwise(logs))
    # Of independent values the correlation with the next is -1 / n on average.
    alike = max(0.0, together / spread / count + 1 / count) if spread > 0 else 1.0
    alike = min(1.0, (alike * count + COMMON * GUESS_WEIGHS) / (count + GUESS_WEIGHS))
    return (alike + 1 / count) / (1 + 1 / count)


def _expected(values: Sequence[float], limit: float, elapsed: float) -> Expected:
    """Return what remains by these, which are all beyond `elapsed`; those of jobs that were cut off are negative."""
    ran = sorted(map(abs, values))
    would_run = sorted(limit if value < 0 else min(value, limit) for value in values)

    def left(total: float) -> float:
        return min(max(total, elapsed), limit) - elapsed

    low, median, high = left(_quantile(ran, _LOW)), left(_quantile(would_run, 0.5)), left(_quantile(would_run, _HIGH))
    ladder = tuple(left(_quantile(would_run, (rung + 0.5) / RUNGS)) for rung in range(RUNGS))
    return Expected(median=median, low=min(low, median), high=max(high, median), of=len(values), ladder=ladder)


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
