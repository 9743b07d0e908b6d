"""How long something is expected to take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Expected:
    """How long a job is expected to run, or to run on, in seconds: ``0 <= low <= median <= high``."""

    median: float
    #: With a probability of 80 % it is between these two.
    low: float
    high: float
    #: How many jobs this is learned from.
    of: int


#: What is known about a job of this owner and name, with this walltime, that has run for so many seconds: how long it runs on.
Expect = Callable[[str, str, float, float], Expected | None]
