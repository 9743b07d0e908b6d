"""`carrel usage`: who used GPUs. `carrel report`: how long jobs take to begin, worth, and jobs in formats of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, flag, open_client, option
from carrel.cli.screen import clean, print_csv, print_json, print_table
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_duration

if TYPE_CHECKING:
    from carrel.wire.v1 import StartReportView, TimesView, UseReportView, UseView

report_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Report how long jobs take to begin, what GPUs were worth, and jobs in formats of others (carrel usage: use).",
)
Since = Annotated[str | None, option("--from", "TIME", "Only from then on: 2026-11-23, in UTC; by default four weeks.")]
Until = Annotated[str | None, option("--to", "TIME", "Only before that; by default now.")]
AsCsv = Annotated[bool, flag("--csv", "Print comma-separated values; times are seconds.")]
_TIMES = ("waited", "prepared", "silent", "to_output", "to_metric")
#: What may come of the time that was held, in the order of the columns.
_ENDS = ("completed", "continued", "failed", "timeout", "cancelled", "lost", "running", "session")
#: What follows them in CSV.
_MORE = (
    "prepared", "measured", "busy", "sessions", "lent", "asked", "sm_measured", "sm_busy", "memory", "memory_peak", "gpu_memory",
    "gpu_memory_peak", "energy", "co2", "cells", "cells_waited", "cells_computed", "cells_paused",
)  # fmt: skip


def usage_command(
    begin: Since = None,
    to: Until = None,
    by: Annotated[
        str,
        typer.Option("--by", metavar="WHAT", help="One row for each user, account, project, qos, gpu_type, node, week or kind."),
    ] = "user",
    anonymous: Annotated[bool, flag("--anonymous", "In rows of at least five people.")] = False,
    as_csv: AsCsv = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show who had GPUs for how long, what came of it, and for how long jobs waited.

    You see your own use; account managers see their accounts', administrators everybody's.
    """
    _check(as_csv=as_csv, as_json=as_json)
    with open_client(home) as client:
        found = client.report_use(begin=begin, end=to, by=by, anonymous=anonymous)
    if as_json:
        return print_json(found)
    if as_csv:
        print_csv(
            ("name", "jobs", "attempts", "waited", "held", *_ENDS, *_MORE),
            [_seconds(row) for row in found.rows],
        )
    else:
        _print_use(found, anonymous=anonymous)
        if found.hint:
            print(f"\nWorth changing: {clean(found.hint)}")
    return OK


@report_command.command("starts")
def starts(begin: Since = None, to: Until = None, as_csv: AsCsv = False, home: Home = None, as_json: AsJson = False) -> int:
    """Show how long jobs took to their place, their command, their first output and metric, by class of service."""
    _check(as_csv=as_csv, as_json=as_json)
    with open_client(home) as client:
        found = client.report_starts(begin=begin, end=to)
    if as_json:
        return print_json(found)
    if as_csv:
        heads = [f"{name}_{what}" for name in _TIMES for what in ("count", "median", "p95")]
        rows = [[one.qos, *(_figure(each) for times in _times(one) for each in (times.count, times.median, times.p95))]
                for one in found.classes]  # fmt: skip
        print_csv(("qos", *heads), rows)
    else:
        _print_starts(found)
    return OK


@report_command.command("sessions")
def sessions(
    begin: Since = None,
    to: Until = None,
    by: Annotated[str, typer.Option("--by", metavar="WHAT", help="One row for each user, account or qos.")] = "user",
    as_csv: AsCsv = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show where the time of sessions went that borrow GPUs: computing, waiting, paused, for input, between cells, away."""
    from carrel.core.gpu_use import SessionTime

    _check(as_csv=as_csv, as_json=as_json)
    with open_client(home) as client:
        found = client.report_sessions(begin=begin, end=to, by=by)
    if as_json:
        return print_json(found)
    if as_csv:
        names = ("sessions", "cells", "gpu_seconds", "measured", "busy", *SessionTime)
        print_csv(("name", *names), [[row.name, *(_figure(getattr(row, name)) for name in names)] for row in found.rows])
    elif not found.rows:
        print("No session that borrows GPUs was open in that time.")
    else:
        rows = [
            (
                row.name,
                str(row.sessions),
                str(row.cells),
                _in_hours(row.gpu_seconds),
                _percent(row.busy, row.measured),
                *(_in_hours(getattr(row, name)) for name in SessionTime),
            )
            for row in found.rows
        ]
        heads = (by.upper(), "SESSIONS", "CELLS", "GPU-HOURS", "BUSY", *(name.upper() for name in SessionTime))
        print_table(heads, rows, right=range(1, len(heads)))
        print(
            "\nHours of sessions from COMPUTED on. In THINKING and AWAY nothing wanted a GPU, for at most, or more than, 10 min."
        )
    return OK


@report_command.command("roi")
def roi(
    year: Annotated[int, option("--year", "YEAR", "The year.", min=1970, max=9998)],
    costs: Annotated[Path, option("--costs", "FILE", "What the GPUs cost (`carrel schema costs.toml`).")],
    output: Annotated[Path | None, option("-o --output", "FILE", "Write it there: .html, .pdf or .csv.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Say what the GPUs cost in a year, and what the same would have cost at price lists that you enter (administrators).

    Every figure has its source or its formula. Without -o a summary is printed.
    """
    from carrel.cli.roi.command import report_roi

    return report_roi(year, costs, output, home, as_json=as_json)


@report_command.command("jobs")
def jobs(
    form: Annotated[str | None, option("--format", "FORMAT", "sacct (by default), xdmod or swf.")] = None,
    begin: Since = None,
    to: Until = None,
    file: Annotated[Path | None, option("--output -o", "FILE", "Write into this file.")] = None,
    hide: Annotated[bool, flag("--anonymous", "Numbers for users, accounts, job names and nodes.")] = False,
    key: Annotated[Path | None, option("--key", "FILE", "The same numbers each time, by the key in FILE.")] = None,
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="What the lab is called there.")] = "carrel",
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Write a line for each attempt of a job, as Slurm's sacct, Open XDMoD's shredder or SWF have it.

    You see your own; account managers see their accounts', administrators everybody's. Nothing is sent anywhere.
    """
    import sys

    from carrel.cli.report_jobs import FORMATS, JSON, export, numbers_of, output

    if as_json and form is not None:
        raise Invalid("--json and --format are two forms.", remedy="Say one of them.")
    form = JSON if as_json else form or FORMATS[0]
    if form not in (*FORMATS, JSON):
        raise Invalid(f'There is no format "{form}".', remedy=f"Name one of: {', '.join(FORMATS)}.")
    numbers = numbers_of(hide=hide, key=key, form=form)
    with open_client(home) as client, output(file) as out:
        count = export(client, form, begin=begin, end=to, cluster=cluster, numbers=numbers, out=out)
    if file is not None:
        print(f"{count:,} attempts in {file}", file=sys.stderr)
    return OK


def _check(*, as_csv: bool, as_json: bool) -> None:
    if as_csv and as_json:
        raise Invalid("--csv and --json are two forms.", remedy="Say one of them.")


def _seconds(row: UseView) -> list[str]:
    ends = [row.held_by_end.get(end, 0.0) for end in _ENDS]
    figures = (row.jobs, row.attempts, row.waited, row.held, *ends, *(getattr(row, name) for name in _MORE))
    return [row.name, *map(_figure, figures)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _print_use(found: UseReportView, *, anonymous: bool) -> None:
    whose = "everybody" if found.owner is None else ", ".join([found.owner, *(f"account {one}" for one in found.accounts)])
    print(f"GPU-hours of {whose}, {_day(found.begin.isoformat())} to {_day(found.end.isoformat())} (UTC)\n")
    if not found.rows:
        print(
            "No job was there in that time, or jobs of fewer than five people." if anonymous else "No job was there in that time."
        )
        return
    # With one row there is nothing to add up.
    rows = [_columns(row) for row in (*found.rows, *([found.total] if len(found.rows) > 1 else ()))]
    used = [name for name in rows[0] if name in ("JOBS", "HELD") or any(row[name] for row in rows)]
    names = [*(row.name or "-" for row in found.rows), "all"]
    table = [(name, *(row[column] for column in used)) for name, row in zip(names, rows, strict=False)]
    print_table((found.by.upper(), *used), table, right=range(1, len(used) + 1))
    print()
    print("\n".join(line for heads, line in _NOTES.items() if heads & set(used)))
    if "ENERGY" in used and found.co2_per_kwh is None:
        print("CO2 is not shown: the lab's carrel.toml has no co2_per_kwh.")


#: Columns, and what is to be said where one of them is shown.
_NOTES = {
    frozenset(("WAITED", "SESSIONS OPEN")): "WAITED and SESSIONS OPEN are hours of jobs.",
    frozenset(
        ("LENT",)
    ): "LENT is what cells and calls borrowed, beside what was held. CELLS WAITED and PAUSED are hours of cells.",
    frozenset(("BUSY",)): "BUSY is for how much of the time a kernel ran on the GPUs that were measured, while commands ran.",
    frozenset(("SM",)): "SM is for how much of that time their multiprocessors had work (GPM, from Hopper on).",
    frozenset(("MEMORY", "GPU MEMORY")): "MEMORY is the peak, of what was asked for; GPU MEMORY of what the GPUs have.",
    frozenset(
        ("ENERGY", "CO2")
    ): "ENERGY is kWh that GPUs of jobs took while commands ran, as NVML says; CO2 is kg, by the lab's co2_per_kwh.",
}


def _columns(row: UseView) -> dict[str, str]:
    """What a row says, by the head of its column; "" for nothing."""
    return {
        "JOBS": str(row.jobs),
        "WAITED": _in_hours(row.waited),
        "ASKED": _in_hours(row.asked),
        "HELD": _in_hours(row.held),
        **{end.upper(): _in_hours(row.held_by_end.get(end, 0.0)) for end in _ENDS},
        "PREPARING": _in_hours(row.prepared),
        "BUSY": _percent(row.busy, row.measured),
        "SM": _percent(row.sm_busy, row.sm_measured),
        "MEMORY": _percent(row.memory_peak, row.memory),
        "GPU MEMORY": _percent(row.gpu_memory_peak, row.gpu_memory),
        "ENERGY": _amount(row.energy / 3_600_000),
        "CO2": _amount((row.co2 or 0.0) / 1000),
        "SESSIONS OPEN": _in_hours(row.sessions),
        "LENT": _in_hours(row.lent),
        "CELLS": str(row.cells or ""),
        "CELLS WAITED": _in_hours(row.cells_waited),
        "PAUSED": _in_hours(row.cells_paused),
    }


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else ""


def _amount(value: float) -> str:
    return "" if not value else "<0.01" if value < 0.01 else f"{value:.2f}"


def _in_hours(seconds: float) -> str:
    return _amount(seconds / 3600)


def _day(text: str) -> str:
    return text[:16].replace("T", " ")


def _print_starts(found: StartReportView) -> None:
    if not found.classes:
        print("No job got its place in that time.")
        return
    heads = ("QOS", "JOBS", "WAITED", "P95", "PREPARED", "P95", "SILENT", "P95", "FIRST OUTPUT", "P95", "FIRST METRIC", "P95")
    rows = [
        (one.qos, str(one.waited.count), *(text for times in _times(one) for text in (_time(times.median), _time(times.p95))))
        for one in found.classes
    ]
    print_table(heads, rows, right=range(1, len(heads)))
    print("\nEach is the median, and what 95 of 100 jobs did not exceed: until the job had its place, until its command began,")
    print("until it wrote something; FIRST OUTPUT and FIRST METRIC are from submission until the lab saw them.")
    waits = [(one.qos, reason, _in_hours(seconds)) for one in found.classes for reason, seconds in one.waits.items()]
    if waits:
        print()
        print_table(("QOS", "WAITED FOR", "HOURS"), waits, right=(2,))


def _times(one: object) -> tuple[TimesView, ...]:
    return tuple(getattr(one, name) for name in _TIMES)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2f} s" if seconds < 60 else format_duration(seconds)
