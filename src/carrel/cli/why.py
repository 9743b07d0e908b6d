"""`carrel why`: which difference between two jobs is the cause of their different results, found by running."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.compare import AttemptName, attempt_name, resolve
from carrel.cli.endings import INTERRUPTED, OK, OTHER
from carrel.cli.options import AsJson, Home, find_job, open_client, option
from carrel.cli.results import Ignore, Tolerance
from carrel.cli.screen import StatusLine, clean, paint, print_json
from carrel.cli.words import short_digest
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.domain.units import format_duration

if TYPE_CHECKING:
    from carrel.cli.screen import StatusLine
    from carrel.client import Client
    from carrel.wire.v1 import VariantView, WhyView

#: Changes that are listed.
_SHOWN = 15
#: Seconds between attempts to look, while the tracking server has no metrics of a job that has just ended.
_PAUSES = (0.5, 1, 2, 4, 8, 15, 30)

_Attempt = Annotated[
    AttemptName, typer.Argument(metavar="ID", parser=attempt_name, help='"12", "12_3" in an array, "12:1" for an attempt.')
]


def why_command(
    first: _Attempt,
    second: _Attempt,
    budget: Annotated[
        float | None, option("--budget", "GPU-HOURS", "GPU-hours that runs may take; else you are asked.", min=0.0)
    ] = None,
    runs: Annotated[int | None, option("--runs", "N", "How many runs there may be; else you are asked.", min=0)] = None,
    seeds: Annotated[
        int | None, option("--seeds", "K", "Run both under so many seeds instead, and compare a metric.", min=4, max=10)
    ] = None,
    metric: Annotated[str, typer.Option("--metric", metavar="NAME", help="With --seeds: which.  [the first]")] = "",
    tolerance: Tolerance = 0.0,
    ignore: Ignore = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Find out why the second job came to other results than the first: run the first again with some facts of the second.

    First it is run twice as it was, then with everything changed, then with half of it, the likeliest first, until the cause is
    left. Runs are jobs of yours; asked again, it goes on where it stood. The exit code is 0 when the cause is found.
    """
    with open_client(home) as client:
        if seeds is not None:
            from carrel.cli.matrix import compare_distributions

            if budget is not None:
                raise Invalid("--budget is of the search for a cause.", remedy="With --seeds say --runs.")
            jobs = (find_job(client, first.job), find_job(client, second.job))
            return compare_distributions(client, jobs, seeds=seeds, metric=metric, most=runs, as_json=as_json)
        ask = partial(client.why, resolve(client, first), resolve(client, second), tolerance=tolerance, ignore=ignore or ())
        stands = ask()
        names = (stands.jobs[0].label, stands.jobs[1].label)
        search = _Search(client, names, ask, quiet=as_json)
        if not as_json:
            for text in _candidates(stands):
                print(text)
        if not stands.answer:
            limit = _limit(stands, budget, runs, names)
            try:
                stands = search.run(stands, limit, StatusLine())
            except KeyboardInterrupt:
                StatusLine().note(f"The jobs go on. Go on with: carrel why {names[0]} {names[1]}")
                return INTERRUPTED
        else:
            search.report(stands)
    if as_json:
        print_json(stands)
    else:
        for text in _answer(stands, names):
            print(text)
    return OK if stands.answer in ("explained", "in part") else OTHER


class _Search:
    def __init__(self, client: Client, names: tuple[str, str], ask: Callable[..., WhyView], *, quiet: bool) -> None:
        self._client, self._names, self._ask, self._quiet = client, names, ask, quiet
        self._told: dict[int | None, None] = {}

    def run(self, stands: WhyView, limit: int, line: StatusLine) -> WhyView:
        """Run what is needed, up to `limit` new jobs, until there is an answer."""
        from carrel.cli.follow import wait_shown

        before = {run.job for run in stands.variants}
        while not stands.answer:
            self.report(stands)
            new = {run.job for run in stands.variants} - before - {None}
            lacking = [run for run in stands.variants if run.job is None and not run.message]
            if lacking and len(new) + len(lacking) > limit:
                return stands
            if lacking:
                stands = self._ask(submit=True)
            for run in stands.variants:
                if run.job is not None and not run.results:
                    wait_shown(self._client, run.job, line)
            stands = self._looked()
        self.report(stands)
        return stands

    def _looked(self) -> WhyView:
        """Where it stands. The tracking server may have the metrics of a job some time after its end only."""
        for pause in _PAUSES:
            try:
                return self._ask()
            except Unavailable:
                time.sleep(pause)
        return self._ask()

    def report(self, stands: WhyView) -> None:
        """Print the runs that have ended since."""
        for run in stands.variants:
            if run.results and run.job not in self._told and not self._quiet:
                self._told[run.job] = None
                print(clean(f"Run {len(self._told)}: {_what(run, self._names)}: {_came_to(run, self._names)}"), flush=True)


def _limit(stands: WhyView, budget: float | None, runs: int | None, names: tuple[str, str]) -> int:
    """How many new runs there may be. Asks a person who has not said it."""
    hours = stands.gpus * stands.seconds / 3600
    if runs is None and budget is None:
        text = f"Up to {stands.most_runs} runs of about {_span(stands.seconds)}"
        text += f", {stands.most_runs * hours:.2g} GPU-hours in all" if stands.gpus else ""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Invalid(
                f"{text}: nobody can be asked whether that may be.",
                remedy=f"Say what it may cost: carrel why {names[0]} {names[1]} --runs {stands.most_runs}.",
            )
        if not typer.confirm(f"{text}, if one thing is the cause. Go on?", err=True):
            raise typer.Abort
        # Two causes need more, and it asks again then.
        return stands.most_runs
    afford = sys.maxsize if budget is None or not hours else int(budget / hours)
    return min(afford, sys.maxsize if runs is None else runs)


def _candidates(stands: WhyView) -> Iterator[str]:
    first, second = (job.label for job in stands.jobs)
    count = len(stands.candidates)
    if not count:
        yield f"Nothing differs between jobs {first} and {second} that can be changed."
        return
    yield f"{count} {'thing differs' if count == 1 else 'things differ'} that can be changed, the likeliest first:"
    for number, one in enumerate(stands.candidates[:_SHOWN], start=1):
        values = f": {short_digest(one.before)} in job {first}, {short_digest(one.after)} in job {second}"
        yield clean(f"  {number}  {one.what}{values if one.before != one.after else ''}")
    if count > _SHOWN:
        yield f"  and {count - _SHOWN} more (--json has all)"


def _answer(stands: WhyView, names: tuple[str, str]) -> Iterator[str]:
    if not stands.answer:
        ran = sum(bool(run.results) for run in stands.variants)
        yield paint(f"Not known yet: {ran} {'run is' if ran == 1 else 'runs are'} done, and the budget allows no more.", "yellow")
        yield f"Go on with: carrel why {names[0]} {names[1]} --runs N"
        return
    style = {"explained": "green", "in part": "yellow"}.get(stands.answer, "red")
    for number, text in enumerate(stands.told):
        yield paint(clean(text), style) if number == 0 else clean(text)


def _what(run: VariantView, names: tuple[str, str]) -> str:
    job = "" if run.job is None else f" (job {run.job})"
    if run.second:
        return f"job {names[1]} again{job}"
    if not run.changes:
        return f"job {names[0]} again{job}"
    shown = ", ".join(run.changes[:3]) + (f" and {len(run.changes) - 3} more" if len(run.changes) > 3 else "")
    return f"with {shown}{job}"


def _came_to(run: VariantView, names: tuple[str, str]) -> str:
    match run.results:
        case "first":
            return f"the results of job {names[0]}"
        case "second":
            return f"the results of job {names[1]}"
        case "others":
            return "other results"
    return f"none: {run.message}" if run.message else "none"


def _span(seconds: float) -> str:
    return format_duration(max(1, round(seconds)))
