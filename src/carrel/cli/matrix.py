"""`carrel matrix`: how far do the results of a job move, by seed, by device, by order, and by itself?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, JobId, find_job, flag, open_client, option
from carrel.cli.results import Ignore
from carrel.cli.screen import StatusLine, clean, print_json, print_table
from carrel.core.comparison.matrix import USUAL
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_count, format_duration

#: Values of each job below which nothing can be said, and the part of chance from which on two are not known to differ.
_FEWEST = 4
_CHANCE = 0.05
_CONSENT = "Say --yes, or of carrel why --runs N."
_NAME_ONE = "Name one with --metric; a number in an output that is JSON is outputs/metrics.json#/loss."

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import MatrixRowView, MatrixView


def matrix_command(
    job_id: JobId,
    seeds: Annotated[int, typer.Option("--seeds", metavar="K", min=1, max=10, help="Under so many seeds.")] = 3,
    cases: Annotated[
        list[str] | None, option("--case", "CASE", "again, device, order or cpus=N; may be repeated.  [again, device, order]")
    ] = None,
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="A metric, or an output: outputs/metrics.json#/loss.  [the first]")
    ] = "",
    ignore: Ignore = None,
    yes: Annotated[bool, flag("--yes -y", "Submit the runs without asking.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run a job again under several seeds, and each of them in other ways, and say how far its results move.

    The ways: the same again; without its GPUs, or with one where it has none; with the samples in another order; with other
    numbers of processors. Runs are jobs of yours; asked again, the command goes on where it stood, and submits nothing twice.
    """
    with open_client(home) as client:
        number = find_job(client, job_id)
        ask = partial(client.matrix, number, seeds=seeds, cases=cases or USUAL, metric=metric, ignore=ignore or ())
        try:
            (stands,) = run_all(client, [ask], most=sys.maxsize if yes else None, valued=bool(metric))
        except KeyboardInterrupt:
            StatusLine().note("The jobs go on. The same command goes on with them.")
            return INTERRUPTED
    if as_json:
        print_json(stands)
    else:
        _print(stands)
    failed = bool(metric and stands.message) or any(one.job is not None and one.message for one in stands.runs)
    return OTHER if failed else OK


def run_all(client: Client, asks: Sequence[Callable[..., MatrixView]], *, most: int | None, valued: bool) -> list[MatrixView]:
    """Run what is lacking of these matrices, `most` runs or what a person agrees to, and return them when all is there.

    `valued`: raises `Invalid`, and runs nothing, where a job has no value of the metric.
    """
    stands = [ask() for ask in asks]
    for one in stands:
        if valued and one.message:
            raise Invalid(one.message, remedy=_NAME_ONE)
    _check_wanted(stands, most)
    return [_run(client, ask) for ask in asks]


def _check_wanted(all_of_them: Sequence[MatrixView], most: int | None) -> None:
    """Ask a person whether so many runs may be submitted, where it was not said."""
    counts = [sum(one.job is None and not one.message for one in stands.runs) for stands in all_of_them]
    count, seconds = sum(counts), max(stands.seconds for stands in all_of_them)
    hours = sum(number * stands.gpus * stands.seconds / 3600 for number, stands in zip(counts, all_of_them, strict=True))
    text = f"{format_count(count, 'run')} of about {format_duration(max(1, round(seconds)))}"
    text += f", {hours:.2g} GPU-hours in all" if hours else ""
    if not count:
        return
    if most is not None:
        if count > most:
            raise Invalid(f"{text}: only {format_count(most, 'run')} may be.", remedy=f"Say --runs {count}.")
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Invalid(f"{text}: without a terminal it cannot be asked whether that may be.", remedy=_CONSENT)
    if not typer.confirm(f"{text}. Go on?", err=True):
        raise typer.Abort


def _run(client: Client, ask: Callable[..., MatrixView]) -> MatrixView:
    from carrel.cli.follow import wait_shown

    stands = ask()
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


def compare_distributions(
    client: Client, jobs: tuple[int, int], *, seeds: int, metric: str, most: int | None, as_json: bool
) -> int:
    """Run two jobs under the same seeds each, and say whether a metric differs between them by more than chance does."""
    from carrel.core.comparison.distributions import permutation_test

    asks = [partial(client.matrix, number, seeds=seeds, cases=(), metric=metric) for number in jobs]
    try:
        found = run_all(client, asks, most=most, valued=True)
    except KeyboardInterrupt:
        StatusLine().note("The jobs go on. The same command goes on with them.")
        return INTERRUPTED
    values = [[value for value in stands.rows[0].values if value is not None] for stands in found]
    if min(map(len, values)) < _FEWEST:
        name = found[0].metric or metric or "(there is none)"
        raise Invalid(
            f"Of the metric {name} {len(values[0])} and {len(values[1])} values are known.",
            remedy=f"Name another with --metric, or take more --seeds: {_FEWEST} values of each are needed.",
        )
    chance = permutation_test(*values)
    if as_json:
        return print_json({"metric": found[0].metric, "values": values, "p": chance, "jobs": jobs})
    means = [f"job {stands.job} {stands.rows[0].mean:.6g} ± {stands.rows[0].deviation:.2g}" for stands in found]
    print(f"{found[0].metric} over {seeds} seeds: {means[0]}, {means[1]} (mean and standard deviation).")
    print(
        f"Dealt at random, {chance:.2g} of all pairs of samples are as far apart (exact two-sided permutation test of the means)."
    )
    print("They differ by more than chance does." if chance < _CHANCE else "They are not known to differ: it may be chance.")
    return OK


def _print(stands: MatrixView) -> None:
    name = stands.metric.rpartition("/")[2] if "#" in stands.metric else stands.metric
    values = f"{name} ± sd".upper() if name else "VALUE"
    heads = ("CASE", "RUNS", "BIT-IDENTICAL", clean(values), "FROM", "TO", "FARTHEST")
    print_table(heads, [_cells(row) for row in stands.rows], right=(1, 2, 3, 4, 5, 6))
    if stands.message:
        print(clean(f"{stands.message} {_NAME_ONE}"))
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
