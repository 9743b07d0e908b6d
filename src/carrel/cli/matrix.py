"""`carrel matrix`: how far do the results of a job move, by seed, by device, by order, and by itself?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, JobId, find_job, open_client
from carrel.cli.results import Ignore
from carrel.core.comparison.matrix import USUAL
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_count, format_duration

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import MatrixRowView, MatrixView


def matrix_command(
    job_id: JobId,
    seeds: Annotated[int, typer.Option("--seeds", metavar="K", min=1, max=10, help="Under so many seeds.")] = 3,
    cases: Annotated[
        list[str] | None,
        typer.Option("--case", metavar="CASE", help="again, device, order or cpus=N; may be repeated.  [again, device, order]"),
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="A metric, or an output: outputs/metrics.json#/loss.  [the first]")
    ] = "",
    ignore: Ignore = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Submit the runs without asking.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run a job again under several seeds, and each of them in other ways, and say how far its results move.

    The ways: the same again; without its GPUs, or with one where it has none; with the samples in another order; with other
    numbers of processors. Runs are jobs of yours; asked again, the command goes on where it stood, and submits nothing twice.
    """
    from carrel.cli.screen import StatusLine, print_json

    with open_client(home) as client:
        number = find_job(client, job_id)
        ask = partial(client.matrix, number, seeds=seeds, cases=cases or USUAL, metric=metric, ignore=ignore or ())
        stands = ask()
        if not stands.done:
            _check_wanted(stands, yes=yes)
        try:
            stands = _run(client, stands, ask)
        except KeyboardInterrupt:
            StatusLine().note("The jobs go on. The same command goes on with them.")
            return INTERRUPTED
    if as_json:
        print_json(stands)
    else:
        _print(stands)
    failed = any(one.job is not None and one.message for one in stands.runs)
    return OTHER if failed else OK


def _check_wanted(stands: MatrixView, *, yes: bool) -> None:
    """Ask a person whether so many runs may be submitted."""
    count = sum(one.job is None and not one.message for one in stands.runs)
    hours = count * stands.gpus * stands.seconds / 3600
    text = f"{format_count(count, 'run')} of about {format_duration(max(1, round(stands.seconds)))}"
    text += f", {hours:.2g} GPU-hours in all" if stands.gpus else ""
    if yes or not count:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Invalid(f"{text}: without a terminal it cannot be asked whether that may be.", remedy="Say --yes.")
    if not typer.confirm(f"{text}. Go on?", err=True):
        raise typer.Abort


def _run(client: Client, stands: MatrixView, ask: Callable[..., MatrixView]) -> MatrixView:
    from carrel.cli.follow import wait_shown
    from carrel.cli.screen import StatusLine

    line, ended = StatusLine(), {one.job for one in stands.runs if one.state == "COMPLETED"}
    while not stands.done:
        stands = ask(submit=True)
        going_on = [one for one in stands.runs if one.job is not None and one.job not in ended]
        for one in going_on:
            assert one.job is not None
            state = wait_shown(client, one.job, line).state
            ended.add(one.job)
            line.note(f"{one.case}, seed {one.seed}: job {one.job} is {state}")
        if not going_on:
            break
        stands = ask()
    return ask()


def _print(stands: MatrixView) -> None:
    from carrel.cli.screen import clean, print_table

    name = stands.metric.rpartition("/")[2] if "#" in stands.metric else stands.metric
    values = f"{name} ± sd".upper() if name else "VALUE"
    heads = ("CASE", "RUNS", "BIT-IDENTICAL", clean(values), "FROM", "TO", "FARTHEST")
    print_table(heads, [_cells(row) for row in stands.rows], right=(1, 2, 3, 4, 5, 6))
    for row in stands.rows:
        if row.message:
            print(clean(f"{row.title}: {row.message}"))
    for one in stands.runs:
        if one.job is not None and one.message:
            print(clean(f"Job {one.job} ({one.case}, seed {one.seed}): {one.message}"))


def _cells(row: MatrixRowView) -> tuple[str, ...]:
    known = [value for value in row.values if value is not None]
    mean = "-" if row.mean is None else f"{row.mean:.6g}"
    mean += "" if row.deviation is None else f" ± {row.deviation:.2g}"
    return (
        row.title,
        f"{row.done} of {row.runs}",
        "-" if row.case == "seed" or not row.compared else f"{row.identical} of {row.compared}",
        mean,
        f"{min(known):.6g}" if known else "-",
        f"{max(known):.6g}" if known else "-",
        "-"
        if row.farthest is None
        else f"{row.farthest:.2%}"
        if row.farthest >= 1e-4 or not row.farthest
        else f"{row.farthest:.1e}",
    )
