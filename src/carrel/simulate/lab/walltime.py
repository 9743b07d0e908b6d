"""The walltime that somebody asks for whose trace does not say."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

_HOUR, _DAY = 3600, 24 * 3600
#: What people write.
USUAL = (
    *(600, 1800, _HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR, 12 * _HOUR),
    *(_DAY, 2 * _DAY, 3 * _DAY, 5 * _DAY, 7 * _DAY, 14 * _DAY, 30 * _DAY),
)


def usual_walltime(seconds: float) -> int:
    """Return the next walltime that people write, for a job that runs `seconds`; beyond the longest, whole months.

    An assumption: people know how long their jobs run, and ask for somewhat more.
    """
    place = bisect_left(USUAL, seconds)
    return USUAL[place] if place < len(USUAL) else ceil(seconds / USUAL[-1]) * USUAL[-1]
