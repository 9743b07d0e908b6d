"""On which days something should be, where hours would say too much.

Days are those of the time zone in which the lab's server runs.
"""

from __future__ import annotations

from calendar import day_name, month_name
from datetime import date, datetime


def days_between(first: float, last: float, now: float) -> str:
    """Name the days between two moments (Unix seconds): "today", "by tomorrow", "not before Monday, by 12 December"."""
    return _days(*(datetime.fromtimestamp(moment).date() for moment in (first, last, now)))


def _days(first: date, last: date, today: date) -> str:
    if first == last:
        name = _name(first, today)
        return name if name in ("today", "tomorrow") else f"on {name}"
    by = f"by {_name(last, today)}"
    return by if first == today else f"not before {_name(first, today)}, {by}"


def _name(day: date, today: date) -> str:
    ahead = (day - today).days
    if ahead < 2:
        return "tomorrow" if ahead else "today"
    return day_name[day.weekday()] if ahead < 7 else f"{day.day} {month_name[day.month]}"
