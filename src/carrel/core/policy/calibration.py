"""How often ranges held that people saw, and what follows for the next ones.

A range of scenarios knows how long jobs may run. It does not know what is submitted later, whose standing changes, or that a
model errs. All that shows in the end: each start is compared with what had been foreseen, and the quantiles of the errors move
the ends of the next ranges out, or in (conformalized quantile regression: Y. Romano, E. Patterson and E. Candès, "Conformalized
Quantile Regression", NeurIPS 2019; in logarithms here, because a wait of days is off by hours). Errors of the future need not be
like those of the past, so the share that is left outside is moved as well, against what was missed (I. Gibbs and E. Candès,
"Adaptive Conformal Inference Under Distribution Shift", NeurIPS 2021): apart for those that were foreseen in a narrow range,
which hold less often than others if all are corrected alike. Waits of one length learn from waits of that length alone:
in a crowd that waits for days nobody starts in time to correct what the others saw, and errors of minutes must not do so.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from math import exp, log

from carrel.core.domain.expectation import (
    SHORTEST_WAIT,
    Correction,
    Corrections,
    Coverage,
    LengthCorrection,
    ShownRange,
    is_wide,
    wait_length,
)
from carrel.core.domain.placement import Wait

#: Starts that count, of waits of each length.
NEWEST = 300
#: So many starts at which the scenarios were right are taken to have been seen before the first.
TRUST = 9
#: The share that is to start outside of a range.
OUTSIDE = 0.2
#: How much of that may be before a range: that is chosen which makes ranges narrow. The first is taken where several are equal.
BEFORE = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9)
#: How much one start changes the share that is aimed at, and between which two it stays.
PACE, LEAST, MOST = 0.02, 0.02, 0.6
#: Seconds by which a start may be outside of a range and still count as right.
CLOSE = 1.0


class Calibration:
    """Compares starts with what owners saw before, and says by what to correct it. Used by one thread; its results by any."""

    def __init__(self) -> None:
        #: What the next ranges are to be corrected by, and how often those of the newest starts held.
        self.corrections = Corrections()
        self.coverage = Coverage()
        self._shown: dict[int, ShownRange] = {}
        self._sides: deque[int] = deque(maxlen=NEWEST)
        self._lengths: dict[int, _Length] = {}

    def restore(self, shown: Iterable[ShownRange]) -> None:
        """Take up what an earlier server kept: the starts in their order, and those who wait."""
        for one in shown:
            if one.started_at is None:
                self._shown[one.job_id] = one
            else:
                self._learn(one, one.started_at)

    def told(self, wait: Wait, now: float) -> ShownRange | None:
        """The owner of a job that waits saw this at `now` (Unix seconds). What they see first counts: it is returned."""
        if wait.foreseen is None or wait.estimated_range is None or wait.job_id in self._shown:
            return None
        low, high = wait.estimated_range
        shown = ShownRange(job_id=wait.job_id, shown_at=now, foreseen=wait.foreseen, low=low, high=high)
        self._shown[wait.job_id] = shown
        return shown

    def started(self, job_id: int, now: float) -> ShownRange | None:
        """A job has started; return what its owner saw. One whose owner saw nothing teaches nothing."""
        shown = self._shown.pop(job_id, None)
        if shown is None:
            return None
        self._learn(shown, now)
        return replace(shown, started_at=now)

    def forget(self, job_id: int) -> bool:
        """A job is over that may never have started; return whether its owner saw something."""
        return self._shown.pop(job_id, None) is not None

    def _learn(self, shown: ShownRange, start: float) -> None:
        side = (start > shown.high + CLOSE) - (start < shown.low - CLOSE)
        self._sides.append(side)
        self.coverage = Coverage(of=len(self._sides), early=self._sides.count(-1), late=self._sides.count(1))
        number = wait_length(shown.foreseen[1] - shown.shown_at)
        length = self._lengths.setdefault(number, _Length())
        length.learn(shown, start, side)
        self.corrections = Corrections({**self.corrections.by_length, number: length.correction()})


class _Length:
    """What is known of waits of one length."""

    def __init__(self) -> None:
        self._errors = (_Errors(), _Errors(), _Errors())
        self._starts = 0
        #: The shares that are aimed at: where a narrow range was foreseen (False), and a wide one.
        self._outside = {False: OUTSIDE, True: OUTSIDE}

    def learn(self, shown: ShownRange, start: float, side: int) -> None:
        """A job started then, before (-1), within (0) or after (1) the range that its owner saw."""
        low, _, high = shown.foreseen
        wide = is_wide(low - shown.shown_at, high - shown.shown_at)
        self._outside[wide] = min(MOST, max(LEAST, self._outside[wide] + PACE * (OUTSIDE - bool(side))))
        self._starts += 1
        for errors, moment in zip(self._errors, shown.foreseen, strict=True):
            errors.add(_log_wait(start - shown.shown_at) - _log_wait(moment - shown.shown_at))

    def correction(self) -> LengthCorrection:
        return LengthCorrection(narrow=self._of(self._outside[False]), wide=self._of(self._outside[True]), starts=self._starts)

    def _of(self, outside: float) -> Correction:
        """The bound that leaves this share of the errors outside."""
        low, middle, high = self._errors
        shares = [outside * part for part in BEFORE]
        ends = [(low.quantile(before), high.quantile(1 - outside + before)) for before in shares]
        first, last = min(ends, key=lambda end: end[1] - end[0])
        return Correction(low=exp(first), middle=exp(middle.quantile(0.5)), high=exp(last))


class _Errors:
    """The newest of some errors, in the order in which they came and by size. Those that are taken on trust are 0."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._ordered = [0.0] * TRUST

    def add(self, error: float) -> None:
        """Keep one; the oldest goes."""
        self._newest.append(error)
        insort(self._ordered, error)
        if len(self._newest) > NEWEST:
            del self._ordered[bisect_left(self._ordered, self._newest.popleft())]

    def quantile(self, probability: float) -> float:
        """Return the error that this share of all are at most, on a straight line between neighbours."""
        rank = probability * (len(self._ordered) - 1)
        below = min(int(rank), len(self._ordered) - 2)
        low, high = self._ordered[below], self._ordered[below + 1]
        return low + (high - low) * (rank - below)


def _log_wait(seconds: float) -> float:
    return log(max(seconds, SHORTEST_WAIT))
