"""The days that a report is about, and how parts of years are counted."""

from __future__ import annotations

from calendar import isleap
from dataclasses import dataclass
from datetime import date, timedelta
from fractions import Fraction


def in_years(day: date) -> Fraction:
    """A day on a scale on which each calendar year has the length 1, and a day its part of that year."""
    return day.year + Fraction((day - date(day.year, 1, 1)).days, 366 if isleap(day.year) else 365)


@dataclass(frozen=True, slots=True)
class Period:
    """From the beginning of `begin` until before `end`, in one year and in UTC."""

    begin: date
    end: date

    @property
    def year(self) -> int:
        """The year."""
        return self.begin.year

    @property
    def last(self) -> date:
        """The last day."""
        return self.end - timedelta(days=1)

    @property
    def years(self) -> Fraction:
        """Its length; 1 for a whole year."""
        return in_years(self.end) - in_years(self.begin)

    def part_of_life(self, bought: date, life: Fraction) -> Fraction:
        """Years of something's life that lie in the period."""
        since = in_years(bought)
        return max(Fraction(0), min(since + life, in_years(self.end)) - max(since, in_years(self.begin)))

    def part_of(self, first: date, last: date) -> Fraction:
        """Which part of the days from `first` to `last` lies in the period."""
        after = last + timedelta(days=1)
        inside = max(0, (min(after, self.end) - max(first, self.begin)).days)
        return Fraction(inside, (after - first).days)

    def hours(self, since: date, until: date | None) -> int:
        """Hours of the period in which something is in service that is from one day until before another."""
        end = self.end if until is None else min(until, self.end)
        return 24 * max(0, (end - max(since, self.begin)).days)
