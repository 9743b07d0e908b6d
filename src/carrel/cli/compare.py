"""`carrel compare`: what differs between jobs, and where to look first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, JobName, argument, find_job, flag, job_name, open_client
from carrel.cli.screen import clean, cut, paint, print_json, print_table
from carrel.cli.words import short_digest
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.wire.v1 import ComparedValue, ComparisonView, DifferenceView

_STYLES = {"likely": "red", "possible": "yellow", "unlikely": "dim", "result": "cyan"}
#: Columns of a value in the table.
_WIDTH = 40
#: Results that are shown: with thousands of metrics what may be the cause would be far above the end of the screen.
_RESULTS = 30


@dataclass(frozen=True, slots=True)
class AttemptName:
    """An attempt as a person names it: "12", "12_3", "12:1"; or a run."""

    job: JobName
    attempt: str
    #: "run:" and its id; "": it is an attempt.
    run: str = ""

    def __str__(self) -> str:
        return self.run or f"{self.job}:{self.attempt}" if self.attempt else str(self.job)


def attempt_name(text: str) -> AttemptName:
    """The number of a job, with that of an attempt behind a colon where it is not the last; or "run:" and the id of a run."""
    if text.startswith("run:"):
        return AttemptName(JobName(0), "", text)
    job, colon, attempt = text.partition(":")
    if colon and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 10 and int(attempt)):
        raise typer.BadParameter(f'"{text}" names no attempt: the first one of job 12 is called "12:1".')
    return AttemptName(job_name(job), str(int(attempt)) if colon else "")


def compare_command(
    jobs: Annotated[
        list[AttemptName],
        argument(
            "ID",
            'Numbers of two jobs or more; "12_3" in an array, "12:1" for an attempt, "run:…" for a run of MLflow\'s.',
            parser=attempt_name,
        ),
    ],
    diff: Annotated[bool, flag("--diff -d", "Show the lines of code that differ, too.")] = False,
    every: Annotated[bool, flag("--all -a", f"Show all results that differ, not {_RESULTS}.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show what differs between jobs: only that, the most likely cause of different results first.

    Parameters, code, packages, inputs, seeds, machines, results. What a record does not say is listed as not known.
    """
    if len(jobs) < 2:
        raise Invalid("One job is named.", remedy="Name two or more: `carrel compare 12 13`.")
    with open_client(home) as client:
        found = client.compare(*(resolve(client, job) for job in jobs))
    if as_json:
        return print_json(found)
    _print(found, diff=diff, every=every)
    return OK


def resolve(client: Client, name: AttemptName) -> str:
    """The attempt as the API names it."""
    if name.run:
        return name.run
    number = find_job(client, name.job)
    return f"{number}:{name.attempt}" if name.attempt else str(number)


def _print(found: ComparisonView, *, diff: bool, every: bool) -> None:
    for sentence in found.summary:
        print(paint(clean(sentence), "bold"))
    if found.differences:
        print()
        results = [one for one in found.differences if one.cause.value == "result"]
        left = 0 if every else max(0, len(results) - _RESULTS)
        # Results are last in the list.
        shown = found.differences[: len(found.differences) - left]
        heads = (
            "",
            "CAUSE",
            "WHAT",
            *(f"JOB {job.label}" if job.id else job.label.upper() for job in found.jobs),
            "WHY IT STANDS HERE",
        )
        rows = [
            (str(one.rank), one.cause.value, _what(one), *(_short(value) for value in one.values), one.evidence) for one in shown
        ]
        print_table(heads, rows, styles={1: _STYLES, len(heads) - 1: "dim"}, right=(0,))
        if left:
            print(f"{left} more results differ: --all shows them.")
    if found.not_known:
        print()
        print("Not known, and so neither equal nor different:")
        rows = [
            (", ".join(one.jobs), " ".join([", ".join(kind.value for kind in one.kinds), one.path]).strip(), one.why)
            for one in found.not_known
        ]
        print_table(("JOBS", "WHAT", "WHY"), rows, styles={2: "dim"})
    if diff:
        for line in _hunks(found):
            print(line)
    causes = {one.cause.value for one in found.differences}
    if len(found.jobs) == 2 and "result" in causes and causes & {"likely", "possible"}:
        print()
        print(f"Which of it is the cause, runs can tell: carrel why {found.jobs[0].label} {found.jobs[1].label}")


def _what(one: DifferenceView) -> str:
    changes = [change for change in one.changes if change.hunks]
    lines = f" (+{changes[0].added} -{changes[0].removed})" if len(changes) == 1 else ""
    return one.what + lines


def _short(value: ComparedValue) -> str:
    if value.known != "value":
        return "none" if value.known == "absent" else "not known"
    return cut(short_digest(value.text), _WIDTH)


def _hunks(found: ComparisonView) -> Iterator[str]:
    first = found.jobs[0].label
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for one in found.differences:
        for change in one.changes:
            yield ""
            yield paint(clean(f"--- {first}/{one.path}"), "bold")
            yield paint(clean(f"+++ {change.job}/{one.path}"), "bold")
            if change.note:
                yield change.note
            for line in (line for hunk in change.hunks for line in hunk.split("\n")):
                yield paint(line[:1] + clean(line[1:]), styles.get(line[:1], ""))
