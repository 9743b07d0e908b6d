"""Where a value stands on an axis, and what is written beside it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import floor, log10

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

#: Marks of a scale of durations on which each is some times the one before it.
_DECADES = (1.0, 10.0, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY, 3650 * DAY)
#: Distances between the marks of an even scale of durations.
_STEPS = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(MINUTE * many for many in (1, 2, 5, 10, 20, 30)),
    *(HOUR * many for many in (1, 2, 3, 6, 12)),
    *(DAY * many for many in (1, 2, 5, 7, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale from `low` to `high`."""

    low: float
    high: float
    #: Values and what is written beside them.
    marks: Sequence[tuple[float, str]]
    #: Equal distances are equal ratios.
    log: bool = False

    def at(self, value: float) -> float:
        """0 at the low end, 1 at the high end; what is beyond an end stands at that end."""
        inside = min(max(value, self.low), self.high)
        if self.log:
            return log10(inside / self.low) / log10(self.high / self.low)
        return (inside - self.low) / (self.high - self.low)


def durations(values: Collection[float]) -> Axis:
    """An axis for seconds: by ratios where they differ by a factor of 100 and more, else even and from 0.

    On a scale of ratios, 0 has no place: a value below a second stands at its low end, whose mark says so.
    """
    highest = max(values, default=0.0)
    shortest = min((value for value in values if value >= 1), default=1.0)
    if highest < 100 * shortest:
        return even_durations(highest)
    low = 1.0 if min(values) < 1 else max(mark for mark in _DECADES if mark <= shortest)
    marks = [(mark, _duration(mark)) for mark in _DECADES if low <= mark <= highest]
    if min(values) < 1:
        marks[0] = (low, "≤ 1 s")
    return Axis(low=low, high=highest, marks=marks, log=True)


def even_durations(highest: float, lowest: float = 0.0) -> Axis:
    """An even axis for seconds."""
    highest = max(highest, lowest + 1.0)
    step = next((step for step in _STEPS if (highest - lowest) / step <= 6), (highest - lowest) / 5)
    first = -(-lowest // step)
    marks = [(min(step * many, highest), _duration(step * many, step)) for many in range(int(first), floor(highest / step) + 1)]
    return Axis(low=lowest, high=highest, marks=marks)


def numbers(highest: float) -> Axis:
    """An even axis from 0 for numbers."""
    highest = highest if highest > 1e-6 else 1.0
    unit = 10 ** floor(log10(highest))
    step = next(step for step in (unit / 5, unit / 2, unit, unit * 2) if highest / step <= 6)
    marks = [
        (min(step * many, highest), f"{step * many:,.6g}" if step < 1000 else f"{step * many:,.0f}")
        for many in range(floor(highest / step) + 1)
    ]
    return Axis(low=0.0, high=highest, marks=marks)


def shares(marks: Iterable[float] = (0, 0.25, 0.5, 0.75, 1)) -> Axis:
    """An axis from 0 to 100 %."""
    return Axis(low=0.0, high=1.0, marks=[(mark, f"{100 * mark:g} %") for mark in marks])


def _duration(seconds: float, step: float | None = None) -> str:
    """In the unit of the step between marks, or in its own."""
    step = seconds if step is None else step
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if step >= unit:
            return f"{seconds / unit:,g} {name}" if seconds else "0"
    return f"{seconds:g} s" if seconds else "0"
