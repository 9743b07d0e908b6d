"""`carrel sweep`: trials of one task with different parameters."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, open_client
from carrel.cli.promote import as_project
from carrel.cli.screen import clean, paint, print_fields, print_json, print_table
from carrel.cli.task_options import option_parameter, said_options, takes_a_task
from carrel.cli.words import local
from carrel.core.submission import SweepOptions, options_of

if TYPE_CHECKING:
    from carrel.wire import v1

_HELP = {"help_option_names": ["-h", "--help"]}
_OPTIONS = {name: option for name, option in options_of(SweepOptions).items() if option.flags}
_START = "start"


class _Group(TyperGroup):
    """`carrel sweep train.py …` is `carrel sweep start train.py …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does it, with the command that is meant."""
        if args and args[0] not in self.commands and args[0] not in (*_HELP["help_option_names"], "--show-completion"):
            args = [_START, *args]
        return super().parse_args(ctx, args)


sweep_command = typer.Typer(
    cls=_Group,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings=_HELP,
    help="Try a task with different parameters, and find the best: `carrel sweep train.py -P lr=loguniform(1e-5,1e-2)`.",
)
Number = Annotated[int, argument("SWEEP", "Number of the sweep.")]


def _start(*, task: Mapping[str, Any], home: Home = None, as_json: AsJson = False, **options: Any) -> int:
    """Start a sweep of a task and return at once. A parameter is tried with what its distribution says.

    -P lr=loguniform(1e-5,1e-2), uniform(0,1,step=0.1), int(1,8), logint(1,1024) or categorical(adam,sgd); others stay the same.
    What is not said here comes from the table `sweep` of the task's own file.
    """
    from carrel.core.domain.distribution import looks_like_one, read_distribution

    distributions = {name: value for name, value in task["parameters"].items() if looks_like_one(value)}
    for name, value in distributions.items():
        read_distribution(name, value)  # before code is packed and sent
    fixed = {name: value for name, value in task["parameters"].items() if name not in distributions}
    warned: list[str] = []
    with open_client(home) as client, as_project({**task, "parameters": fixed}) as (project, notebook):
        warned.extend(notebook.notes if notebook is not None else ())
        sweep = client.sweep_project(
            distributions=distributions,
            options=said_options(options, _OPTIONS),
            packed=lambda travelling: warned.extend(travelling.warnings()),
            **project,
        )
    if as_json:
        return print_json(sweep)
    for line in warned:
        print(f"{paint('warning:', 'yellow', sys.stderr)} {clean(line)}", file=sys.stderr)
    print(f"Started sweep {paint(str(sweep.id), 'bold')}: {sweep.name}, {sweep.trials} trials, {sweep.parallel} at once")
    print(paint(f"  how far it is: carrel sweep show {sweep.id}", "dim"))
    return OK


def _with_sweep_options(command: Any) -> Any:
    """The declared options of a sweep, before those that every command has."""
    signature = inspect.signature(command, eval_str=True)
    own = [option_parameter(name, option) for name, option in _OPTIONS.items()]
    task, *others = (one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD)
    command.__signature__ = signature.replace(parameters=[task, *own, *others])
    return command


sweep_command.command(_START)(takes_a_task(_with_sweep_options(_start)))


@sweep_command.command("list")
def list_sweeps(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=500, help="How many.")] = 50,
    before: Annotated[int | None, typer.Option("--before", min=1, help="Only those with smaller numbers.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List one's own sweeps, newest first, with their trials."""
    with open_client(home) as client:
        found = client.sweep_page(limit=limit, before=before)
    if as_json:
        return print_json(found)
    rows = [
        (
            str(one.id),
            one.name,
            one.state,
            f"{_done(one)} of {one.trials}",
            str(one.counts.get("RUNNING", 0)),
            local(one.created_at),
        )
        for one in found.sweeps
    ]
    print_table(("SWEEP", "NAME", "STATE", "DONE", "RUN", "SINCE"), rows)
    if found.next is not None:
        more = f"carrel sweep list --before {found.next}" + (f" --limit {limit}" if limit != 50 else "")
        print(paint(f"  older ones: {more}", "dim"))
    return OK


@sweep_command.command("show")
def show(
    number: Number,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Trials to show, best first.")] = 20,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show a sweep, its trials, and the command that runs the best parameters."""
    with open_client(home) as client:
        sweep = client.sweep(number)
    if as_json:
        return print_json(sweep)
    _say(sweep, limit)
    return OK


@sweep_command.command("stop")
def stop(number: Number, home: Home = None, as_json: AsJson = False) -> int:
    """Start no more trials, and end those that run. The sweep can be resumed."""
    with open_client(home) as client:
        return _say_state(client.stop_sweep(number), as_json=as_json)


@sweep_command.command("resume")
def resume(
    number: Number,
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="How many trials it has altogether.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Go on with a sweep that was stopped or failed, or do more trials. Trials that have ended are not repeated."""
    with open_client(home) as client:
        return _say_state(client.resume_sweep(number, trials=trials), as_json=as_json)


def _done(sweep: v1.SweepView) -> int:
    return sum(sweep.counts.get(state, 0) for state in ("COMPLETED", "PRUNED", "FAILED"))


def _say_state(sweep: v1.SweepDetail, *, as_json: bool) -> int:
    if as_json:
        return print_json(sweep)
    left = sum(one.ended_at is None for one in sweep.all_trials)
    rest = f"; {left} of its trials still run" if left else ""
    print(f"Sweep {sweep.id} is {sweep.state}: {_done(sweep)} of {sweep.trials} trials are done{rest}.")
    return OK


def _say(sweep: v1.SweepDetail, limit: int) -> None:
    counts = ", ".join(f"{number} {state}" for state, number in sorted(sweep.counts.items())) or "none yet"
    print_fields(
        [
            ("sweep", f"{sweep.id}: {sweep.name}"),
            ("state", f"{sweep.state}{f'. {sweep.message}' if sweep.message else ''}"),
            ("trials", f"{counts}; {sweep.trials} altogether, {sweep.parallel} at once"),
            ("metric", f"{sweep.direction} {sweep.metric}"),
            ("chosen by", f"{sweep.sampler}, seed {sweep.seed}; pruner: {sweep.pruner}"),
            *((f"  {name}", text) for name, text in sweep.parameters.items()),
            *([("trouble", sweep.trouble)] if sweep.trouble else []),
        ]
    )
    if sweep.all_trials:
        names = list(sweep.parameters)
        rows = [
            (
                str(one.number),
                one.state,
                "" if one.value is None else f"{one.value:.6g}",
                *(_short(one.parameters.get(name)) for name in names),
                str(one.job_id or ""),
                one.message.partition("\n")[0],
            )
            for one in _best_first(sweep)[:limit]
        ]
        print_table(("TRIAL", "STATE", sweep.metric, *names, "JOB", ""), rows)
    if sweep.best is not None:
        best = next(one for one in sweep.all_trials if one.number == sweep.best)
        print(f"\nThe best is trial {best.number}: {shlex.join(sweep.best_arguments)}")
        print(f"To run it again: carrel rerun {best.job_id}")


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _best_first(sweep: v1.SweepDetail) -> list[v1.TrialView]:
    sign = 1 if sweep.direction == "minimize" else -1
    done = [one for one in sweep.all_trials if one.state == "COMPLETED" and one.value is not None]
    rest = [one for one in sweep.all_trials if one not in done]
    return sorted(done, key=lambda one: (sign * (one.value or 0.0), one.number)) + sorted(rest, key=lambda one: -one.number)
