"""`carrel simulate`: what a change of policy would do, before it is made."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home
from carrel.cli.simulated import Asked, TaskRules, check_report, check_together
from carrel.core.domain.units import parse_duration, parse_size

if TYPE_CHECKING:
    from carrel.simulate.report import Comparison

#: Characters of the bar.
_BAR = 24


def simulate_command(
    trace: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRACE]",
            help="A trace file (Muri, Tiresias, SWF), or `lab` for this lab's own jobs or cells. Without one jobs are generated.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[str | None, typer.Option(metavar="FORM", help="Format of the file.  [by its beginning]")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="POLICY", help="Compare this policy; may be repeated.  [all]", show_default=False),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="NODESxGPUS", help="Machines, such as 8x8.  [those of the trace, of the lab, or 8x8]")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Compare with a change: gpus=+4, qos.batch.priority=5; may be repeated.",
            show_default=False,
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The lab's rules.  [carrel.toml in the home directory]", show_default=False),
    ] = None,
    notebooks: Annotated[
        bool, typer.Option("--notebooks", help="Compare when notebooks give GPUs back; TRACE holds cells.", show_default=False)
    ] = False,
    last: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --notebooks lab: only what was asked for within this time, such as 30d.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="With --notebooks: a queue of tasks behind them; a trace file, or `generated`.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With --tasks: size of each GPU state.  [5 to 70 GB]", show_default=False),
    ] = None,
    task_turn: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="With --tasks: how long a task computes at least.", show_default=False),
    ] = None,
    task_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="X", help="With --tasks: what a task keeps from long cells.", show_default=False),
    ] = None,
    move_time: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help="What it takes a job to go on after it was stopped.  [60]", show_default=False
        ),
    ] = None,
    broker: Annotated[
        bool,
        typer.Option(
            "--broker", help="With --notebooks: also as Carrel's broker lends, which takes a minute.", show_default=False
        ),
    ] = False,
    homes_move: Annotated[
        bool, typer.Option("--homes-move", help="With --tasks or --broker: states in host memory come back on any GPU.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Generated jobs.  [1000]", show_default=False)] = None,
    load: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=10, metavar="X", help="GPU time of generated jobs, of what there is.  [0.9]", show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Of what is generated: the same seed gives the same.  [1]", show_default=False),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with plots, that needs nothing but a browser.", show_default=False),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Run recorded or generated work through this lab's policy, and through others, with a virtual clock.

    The policy is the very code that decides in the lab. docs/simulate.md says how to choose one with it.
    """
    options = {
        **{"--form": form, "--policy": policy, "--what-if": what_if, "--rules": rules},
        **{"--jobs": jobs, "--load": load, "--seed": seed, "--tasks": tasks},
        **{"--state": state, "--task-turn": task_turn, "--task-share": task_share, "--homes-move": homes_move or None},
        "--move-time": move_time,
        "--broker": broker or None,
        "--last": last,
    }
    given = [name for name, value in options.items() if value is not None and value != []]
    check_together(trace, given, notebooks=notebooks, tasks=tasks is not None)
    changes = TaskRules(
        turn=task_turn, share=task_share, homes_move=homes_move, state=None if state is None else parse_size(state)
    )
    if report is not None:
        check_report(report, trace)
    asked = Asked(
        trace=trace,
        form=form,
        gpus=gpus,
        rules=rules,
        jobs=1000 if jobs is None else jobs,
        load=0.9 if load is None else load,
        seed=1 if seed is None else seed,
        home=home,
        last=None if last is None else parse_duration(last),
        move=move_time,
    )
    bar = _Bar()
    try:
        if tasks is not None:
            comparison = asked.together(tasks, changes, bar.show)
        elif notebooks:
            comparison = asked.notebooks(bar.show, broker=broker, homes_move=homes_move)
        elif what_if:
            comparison = asked.change(what_if, bar.show)
        else:
            comparison = asked.policies(policy or (), bar.show)
    finally:
        bar.clear()
    if report is not None:
        from carrel.simulate.report import write_report

        write_report(report, comparison)
    if as_json:
        from carrel.cli.screen import print_json
        from carrel.simulate.report import as_json as plain

        print_json({**plain(comparison), "report": None if report is None else str(report)})
        return OK
    _print(comparison, compared=bool(what_if))
    if report is not None:
        print(f"\nThe report: {report}")
    return OK


def _print(comparison: Comparison, *, compared: bool) -> None:
    from carrel.cli.screen import clean
    from carrel.simulate.report import compare, notebooks_table, policies_table, together_table

    print(clean(comparison.title))
    for note in comparison.trace.notes:
        print(f"  {clean(note)}")
    measures = comparison.measures()
    if comparison.together:
        print(f"\n{together_table(comparison.together)}")
    elif comparison.notebooks:
        print(f"\n{notebooks_table(comparison.notebooks)}")
    elif compared:
        before, after = measures
        print(f"\n{compare(before, after, ('Now', 'Then'))}")
    else:
        print(f"\n{policies_table(measures)}")
    for outcome in comparison.outcomes:
        if outcome.refused:
            number, why = outcome.refused[0]
            rest = f" and {len(outcome.refused) - 1} more" if len(outcome.refused) > 1 else ""
            print(f"\n{outcome.policy} refused job {number}{rest}: {clean(why)}")


class _Bar:
    """How far a simulation is, on a terminal; elsewhere nobody watches."""

    def __init__(self) -> None:
        from carrel.cli.screen import StatusLine

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
