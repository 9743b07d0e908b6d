"""`carrel simulate`: what a change of policy would do, before it is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, flag, option
from carrel.cli.screen import StatusLine, clean, print_json, print_table
from carrel.cli.simulated import LAB, Asked, check_options
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import parse_duration

if TYPE_CHECKING:
    from carrel.simulate.study import Comparison

#: Characters of the bar.
_BAR = 24


def simulate_command(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="[TRACE]",
            help="A file of jobs (sacct, Open XDMoD, SWF) or of cells, or `lab` for what this lab has recorded.",
        ),
    ] = LAB,
    form: Annotated[str | None, option("--form", "FORM", "Format of the file.  [by its beginning]")] = None,
    gpus: Annotated[
        str | None, option("--gpus", "NODESxGPUS", "Machines, such as 8x8.  [those of the trace, of the lab, or 8x8]")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        option("--what-if", "NAME=VALUE", "Compare with a change: gpus=+4, qos.batch.priority=5; may be repeated."),
    ] = None,
    rules: Annotated[Path | None, option("--rules", "FILE", "The lab's rules.  [carrel.toml in the home directory]")] = None,
    move_time: Annotated[
        float | None, option("--move-time", "SECONDS", "What it takes a job to go on after it was stopped.  [60]", min=0)
    ] = None,
    notebooks: Annotated[bool, flag("--notebooks", "How many GPUs do notebooks need? TRACE holds cells.")] = False,
    homes_stay: Annotated[
        bool, flag("--homes-stay", "With --notebooks: states come back to the GPUs that they left, and to no others.")
    ] = False,
    composed: Annotated[bool, flag("--composed", "How many GPUs would machines from parts need for equal waits?")] = False,
    small: Annotated[
        float | None,
        option(
            "--small",
            "PERCENT",
            "With --composed: of jobs on one GPU, those for which a seventh of it would do.  [0]",
            min=0,
            max=100,
        ),
    ] = None,
    last: Annotated[
        str | None,
        option("--last", "TIME", "With --notebooks: of the lab's cells those that were asked for within this time, such as 30d."),
    ] = None,
    as_csv: Annotated[bool, flag("--csv", "Print comma-separated values; times are seconds.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run recorded work through this lab's policy, with a virtual clock.

    The policy is the very code that decides in the lab. docs/simulate.md says how to choose one with it.
    """
    options = {
        **{"--form": form, "--what-if": what_if, "--rules": rules},
        **{"--move-time": move_time, "--homes-stay": homes_stay or None, "--last": last},
        **{"--composed": composed or None, "--small": small},
    }
    given = [name for name, value in options.items() if value is not None and value != []]
    check_options(trace, given, notebooks=notebooks, composed=composed)
    if as_csv and as_json:
        raise Invalid("--csv and --json are two forms.", remedy="Say one of them.")
    asked = Asked(
        trace=trace,
        form=form,
        gpus=gpus,
        rules=rules,
        home=home,
        last=None if last is None else parse_duration(last),
        move=move_time,
        homes_move=not homes_stay,
    )
    bar = _Bar()
    try:
        if notebooks:
            comparison = asked.notebooks(bar.show)
        elif composed:
            comparison = asked.composed((small or 0.0) / 100, bar.show)
        elif what_if:
            comparison = asked.change(what_if, bar.show)
        else:
            comparison = asked.policies(bar.show)
    finally:
        bar.clear()
    if as_json:
        from carrel.simulate.study import as_json as plain

        print_json(plain(comparison))
    elif as_csv:
        import csv

        from carrel.simulate.study import as_rows

        rows = as_rows(comparison)
        writer = csv.DictWriter(sys.stdout, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _print(comparison, change=bool(what_if))
    return OK


def _print(found: Comparison, *, change: bool) -> None:
    from carrel.simulate.tables import change_table, layouts_table, notebooks_table, policies_table

    print(clean(found.title))
    for note in found.trace.notes:
        print(f"  {clean(note)}")
    print()
    if found.notebooks:
        heads, rows = notebooks_table(found.notebooks)
    elif found.layouts:
        heads, rows = layouts_table(found.layouts)
    elif change:
        heads, rows = change_table(*found.policies)
    else:
        heads, rows = policies_table(found.policies)
    print_table(heads, rows, right=range(1, len(heads)))
    for policy, refused in found.refused.items():
        if refused:
            number, why = refused[0]
            rest = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            print(f"\n{clean(policy)} refused job {number}{rest}: {clean(why)}")


class _Bar:
    """How far a simulation is, on a terminal; elsewhere nobody watches."""

    def __init__(self) -> None:
        # A terminal that cannot take a line back would get hundreds.
        self._line = StatusLine() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None

    def show(self, what: str, done: float) -> None:
        """`done` of everything is done; `what` is simulated now."""
        if self._line is not None:
            full = int(done * _BAR)
            self._line.show(f"[{'#' * full}{'.' * (_BAR - full)}] {done:4.0%}  {what}")

    def clear(self) -> None:
        """It is over."""
        if self._line is not None:
            self._line.clear()
