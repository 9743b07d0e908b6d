"""How long something is expected to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import log

#: Seconds; waits are compared as if none were shorter.
SHORTEST_WAIT = 60.0
#: A range of waits is wide where it ends more than so many times as late as it begins, and long where it ends so many seconds
#: later: below that, minutes and hours say enough.
WIDE, LONG = 3.0, 6 * 3600.0
#: A long range that is narrow is believed when so many waits of its length have been compared with their starts.
ENOUGH = 10
#: Waits up to so many times `SHORTEST_WAIT` are of one length, those up to so many times these of the next, and so on.
_LENGTH = 64


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


@dataclass(frozen=True, slots=True)
class Correction:
    """By which factors waits are longer than is foreseen: at the lower end of a range, in the middle, at the upper end."""

    low: float = 1.0
    middle: float = 1.0
    high: float = 1.0

    def of(self, low: float, middle: float, high: float) -> tuple[float, float, float]:
        """Return the corrected wait, in the order and the unit in which it was given; rising, as it was."""
        middle *= self.middle
        return min(low * self.low, middle), middle, max(high * self.high, middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCorrection:
    """The corrections of waits of one length: those that are foreseen in a narrow range, and in a wide one."""

    narrow: Correction
    wide: Correction
    #: Starts from which both were learned.
    starts: int

    def of(self, low: float, middle: float, high: float) -> tuple[float, float, float]:
        """Return the corrected wait, in seconds, in the order in which it was given; rising, as it was."""
        return (self.wide if is_wide(low, high) else self.narrow).of(low, middle, high)


@dataclass(frozen=True, slots=True)
class Corrections:
    """Those of short and of long waits: what makes a wait of minutes longer is little to one of days."""

    #: By `wait_length`; a length that is missing is not corrected.
    by_length: Mapping[int, LengthCorrection] = field(default_factory=dict)

    def of(self, low: float, middle: float, high: float) -> tuple[float, float, float]:
        """Return the corrected wait, in seconds, in the order in which it was given; rising, as it was."""
        correction = self.by_length.get(wait_length(middle))
        return (low, middle, high) if correction is None else correction.of(low, middle, high)

    def are_known(self, middle: float) -> bool:
        """True where `ENOUGH` waits as long as `middle`, which is not corrected, were compared with their starts."""
        correction = self.by_length.get(wait_length(middle))
        return correction is not None and correction.starts >= ENOUGH


def wait_length(seconds: float) -> int:
    """Return of which length a wait is: 0 below 64 minutes, 1 below 68 hours, 2 above."""
    return int(log(max(seconds, SHORTEST_WAIT) / SHORTEST_WAIT, _LENGTH))


def is_wide(low: float, high: float) -> bool:
    """True where a range of waits, in seconds, is wide for what it is about."""
    return high > WIDE * max(low, SHORTEST_WAIT)


def is_told_in_days(low: float, high: float, *, known: bool) -> bool:
    """True where a range of waits, in seconds, is told in days: it is long, and wide or not `known` to hold."""
    return high - low > LONG and (is_wide(low, high) or not known)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRange:
    """The first range that the owner of a waiting job saw, and when the job started. Unix seconds."""

    job_id: int
    shown_at: float
    #: Before the correction: lower end, middle, upper end.
    foreseen: tuple[float, float, float]
    low: float
    high: float
    #: None: it waits.
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often the ranges of start times held that people saw."""

    #: Starts that were compared, and how many of them were before their range, and after it.
    of: int = 0
    early: int = 0
    late: int = 0

    @property
    def held(self) -> int:
        """How many were within it."""
        return self.of - self.early - self.late


#: What is known about a job of this owner and name, with this walltime, that has run for so many seconds: how long it runs on.
Expect = Callable[[str, str, float, float], Expected | None]
#: The days between two moments in words, as seen from a third: first, last, now (Unix seconds).
NameDays = Callable[[float, float, float], str]
