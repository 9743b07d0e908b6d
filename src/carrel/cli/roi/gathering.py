"""What goes into a report: the cost file, the days, and what the lab has measured in them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.core.domain.errors import Denied, Invalid, NotFound
from carrel.core.worth import CostModel, Measured, Period, read_costs

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import UseView

_HOUR = 3600
#: A cost file has some kilobytes.
_MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CostFile:
    """A cost file that was read."""

    path: Path
    model: CostModel
    sha256: str


def read_cost_file(path: Path) -> CostFile:
    """Read it. Raises `Invalid`."""
    try:
        with path.open("rb") as stream:
            found = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}.", remedy="Name a cost file: see docs/roi.md.") from error
    if len(found) > _MOST_BYTES:
        raise Invalid(f"{path} has more than a MiB.", remedy="Name a cost file: see docs/roi.md.")
    try:
        text = found.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is not in UTF-8.", remedy="Save it in UTF-8.") from error
    return CostFile(path, read_costs(text, path.name), hashlib.sha256(found).hexdigest())


def period_of(year: int, since: date | None, today: date) -> Period:
    """The days of a year that are over, from the first day of the lab's records on."""
    begin, end = max(date(year, 1, 1), since or date.min), min(date(year + 1, 1, 1), today)
    if begin >= end:
        which = f"no day of {year} is over" if since is None or since < end else f"the lab's records begin on {since}"
        raise Invalid(f"There is nothing to report of {year}: {which}.", remedy="Name another year; days are those of UTC.")
    return Period(begin, end)


def measure(client: Client, period: Period, model: CostModel) -> Measured:
    """Ask the lab. Raises `Denied` where the caller does not see everybody's use."""
    begin, end = period.begin.isoformat(), period.end.isoformat()
    users = client.report_use(begin=begin, end=end, by="user")
    if users.owner is not None:
        raise Denied("This report is about everybody's use, and you see your own.", remedy="Ask an administrator of the lab.")
    accounts = client.report_use(begin=begin, end=end, by="account")
    return Measured(
        held={end: _hours(seconds) for end, seconds in users.total.held_by_end.items()},
        lent=_hours(users.total.lent),
        observed=_hours(users.total.measured),
        busy=_hours(users.total.busy),
        users={row.name: _used(row) for row in users.rows if row.attempts},
        accounts={row.name: _used(row) for row in accounts.rows},
        jobs=users.total.jobs,
        cited={job: _state(client, job) for paper in model.publications for job in paper.jobs if period.year in paper.years},
        source=f"Measured by the lab: carrel report use --from {begin} --to {end}.",
    )


def _state(client: Client, job: int) -> str | None:
    try:
        return client.job(job).state
    except NotFound:
        return None


def _used(row: UseView) -> Fraction:
    return _hours(row.held) + _hours(row.lent)


def _hours(seconds: float) -> Fraction:
    return Fraction(seconds) / _HOUR
