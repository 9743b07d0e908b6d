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
    #: Quantiles, rising, at probabilities that are evenly spread: of k the first is at 1 / 2k and the last at 1 - 1 / 2k.
    #: Without them run times are taken to be log-normal on either side of the median.
    ladder: tuple[float, ...] = ()
    #: Jobs of one kin have something in common that is not known of any of them, and so have all jobs of the lab: shares, 0 to 1
    #: together, of the variance of the logarithms of their run times. Jobs without a kin are that of their owner and name.
    kin: str = ""
    common: float = 0.0
    common_to_all: float = 0.0


#: What is known about a job of this owner and name, with this walltime, that has run for so many seconds: how long it runs on.
Expect = Callable[[str, str, float, float], Expected | None]
