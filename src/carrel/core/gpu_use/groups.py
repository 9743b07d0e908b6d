"""What rows of a report stand for, and how an interval is cut to fit into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

WEEK = 7 * 86400.0
#: Monday, 5 January 1970, in UTC.
_A_MONDAY = 4 * 86400.0


class Grouping(StrEnum):
    """One row for each of these."""

    USER = "user"
    ACCOUNT = "account"
    PROJECT = "project"
    QOS = "qos"
    GPU_TYPE = "gpu_type"
    NODE = "node"
    WEEK = "week"
    KIND = "kind"

    @property
    def of_attempts(self) -> bool:
        """True where attempts of one job may be in different rows. For how long it waited is in the row "" then."""
        return self in (Grouping.GPU_TYPE, Grouping.NODE)


def monday_before(at: float) -> float:
    """The Monday, 00:00 in UTC, at which the week of that moment began."""
    return (at - _A_MONDAY) // WEEK * WEEK + _A_MONDAY


@dataclass(frozen=True, slots=True)
class Range:
    """From `begin` until before `end`, Unix seconds."""

    begin: float
    end: float

    def overlap(self, since: float, until: float) -> float:
        """Seconds of an interval that lie in the range."""
        # Without min() and max(): this is what a report of a million attempts spends its time on.
        begin = since if since > self.begin else self.begin
        end = until if until < self.end else self.end
        return end - begin if end > begin else 0.0

    def meets(self, since: float, until: float) -> bool:
        """True when a part of the interval lies in the range. A moment has no length, and lies where it is."""
        return since < self.end and (until > self.begin or since == until == self.begin)

    def weeks(self, since: float, until: float) -> Iterator[Range]:
        """The parts of the range, one for each week, that the interval meets."""
        monday = monday_before(max(since, self.begin))
        while monday < self.end and (monday < until or monday <= since):
            yield Range(max(monday, self.begin), min(monday + WEEK, self.end))
            monday += WEEK
