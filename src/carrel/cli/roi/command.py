"""Reads the cost file, asks the lab for what it measured, makes the report and writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from carrel.cli.endings import OK
from carrel.cli.options import open_client
from carrel.cli.screen import clean, print_fields, print_json
from carrel.core.domain.errors import Denied, Invalid, NotFound
from carrel.core.worth import Assessment, CostModel, Measured, Period, assess, read_costs, show

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import UseView

_HOUR = 3600
#: A cost file has some kilobytes.
_MOST_BYTES = 1024 * 1024
_SUFFIXES = (".html", ".pdf", ".csv")
#: What the summary on the screen has.
_SHOWN: Mapping[str, str] = MappingProxyType(
    {
        "cost": "cost",
        "hours.offered": "GPU-hours offered",
        "hours.used": "GPU-hours used",
        "utilisation": "utilisation",
        "hour.offered": "a GPU-hour offered",
        "hour.used": "a GPU-hour used",
        "hour.completed": "a GPU-hour completed",
    }
)


def report_roi(year: int, costs: Path, output: Path | None, home: Path | None, *, as_json: bool) -> int:
    """What `carrel report roi` does."""
    if output is not None:
        _check_output(output, costs)
    file = read_cost_file(costs)
    period = period_of(year, file.model.lab.since, datetime.now(UTC).date())
    with open_client(home) as client:
        simulated = client.lab().simulated
        found = assess(file.model, period, measure(client, period, file.model))
    if output is not None:
        _write(output, _content(output.suffix.lower(), found, file, simulated=simulated))
    if as_json:
        from carrel.cli.roi.sheets import as_json as document

        written = None if output is None else str(output)
        print_json(document(found, sha256=file.sha256, simulated=simulated) | {"report": written})
    elif output is not None:
        print(f"The report: {output}")
    else:
        _print_summary(found, simulated=simulated)
    return OK


def _check_output(output: Path, costs: Path) -> None:
    """Before the lab is asked."""
    suffix = output.suffix.lower()
    if suffix not in _SUFFIXES:
        raise Invalid(f"{output} has no ending that says what to write.", remedy=f"Valid are {', '.join(_SUFFIXES)}.")
    if output.is_dir() or not output.parent.is_dir():
        why = "is a directory" if output.is_dir() else "no such file or directory"
        raise Invalid(f"{output} cannot be written: {why}.", remedy="Name a file in a directory that you may write to.")
    if output.exists() and costs.exists() and output.samefile(costs):
        raise Invalid(f"{output} is the cost file.", remedy="Name another file for the report.")


def _content(suffix: str, found: Assessment, file: CostFile, *, simulated: bool) -> bytes:
    if suffix == ".csv":
        from carrel.cli.roi.sheets import as_csv

        return as_csv(found).encode()
    from carrel.cli.roi.page import page

    made = page(found, costs=file.path.name, sha256=file.sha256, simulated=simulated)
    if suffix == ".html":
        return made.encode()
    from carrel.cli.roi.pdf import pdf

    return pdf(made)


def _write(output: Path, content: bytes) -> None:
    try:
        output.write_bytes(content)
    except OSError as error:
        raise Invalid(
            f"{output} cannot be written: {error.strerror}.", remedy="Name a file in a directory that you may write to."
        ) from error


def _print_summary(found: Assessment, *, simulated: bool) -> None:
    print(
        f"{clean(found.model.lab.name)}, {found.period.begin} to {found.period.last}{' (simulated GPUs)' if simulated else ''}\n"
    )
    shown = [(name, show(figure.quantity)) for id, name in _SHOWN.items() if (figure := found.sheet.get(id)) is not None]
    for cloud in found.clouds:
        figures = (cloud.on_demand_difference, cloud.reserved_difference, cloud.break_even)
        shown += [(clean(one.name), show(one.quantity)) for one in figures if one is not None]
    print_fields(shown)
    for note in found.notes:
        print(f"\nnote: {clean(note)}")
    print("\n-o report.html writes the whole report, with the formula and the source of each figure.")


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
    told = {row.name for row in client.report_use(begin=begin, end=end, by="account", anonymous=True).rows}
    return Measured(
        small=frozenset(row.name for row in accounts.rows if row.name not in told),
        held={end: _hours(seconds) for end, seconds in users.total.held_by_end.items()},
        lent=_hours(users.total.lent),
        observed=_hours(users.total.measured),
        busy=_hours(users.total.busy),
        users={row.name: _used(row) for row in users.rows if row.attempts},
        accounts={row.name: _used(row) for row in accounts.rows},
        jobs=users.total.jobs,
        cited={job: _state(client, job) for paper in model.publications for job in paper.jobs if period.year in paper.years},
        source=f"Measured by the lab: carrel usage --from {begin} --to {end}.",
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
