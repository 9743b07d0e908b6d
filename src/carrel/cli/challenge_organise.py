"""Commands of `carrel challenge` for what is told and asked in a challenge, and for what organisers see and give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.challenge_screen import print_found
from carrel.cli.endings import OK
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import clean, paint, print_csv, print_json, print_table
from carrel.cli.words import local
from carrel.core.domain.errors import Invalid

if TYPE_CHECKING:
    from carrel.core.domain.challenge import SubmissionList
    from carrel.core.domain.challenge_notice import ChallengeNotice
    from carrel.core.domain.challenge_report import ChallengeReport

organise_commands = typer.Typer()
Name = Annotated[str, argument("CHALLENGE", "Name of the challenge.")]
Words = Annotated[str, argument("TEXT", "Plain text.")]


@organise_commands.command("notices")
def notices(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Print what a challenge tells: announcements, changes, what your team was given, questions and answers."""
    with open_client(home) as client:
        found = client.challenge_notices(name)
    if as_json:
        return print_found(found)
    for one in found.notices:
        print_notice(one)
    return OK


def print_notice(one: ChallengeNotice) -> None:
    """Print a notice, with its answer below."""
    by = f", by {clean(one.by)}" if one.by else ""
    print(f"{paint(f'{one.kind} {one.id}', 'bold')}  {local(one.made_at)}{by}: {clean(one.text)}")
    if one.answer:
        print(f"  {clean(one.answered_by)} answers{' to all' if one.published else ''}: {clean(one.answer)}")


@organise_commands.command("ask")
def ask(name: Name, text: Words, home: Home = None, as_json: AsJson = False) -> int:
    """Ask the organisers of a challenge something. They answer you, or everybody without your name."""
    with open_client(home) as client:
        found = client.ask_in_challenge(name, text)
    return _told(found, as_json=as_json)


@organise_commands.command("announce")
def announce(name: Name, text: Words, home: Home = None, as_json: AsJson = False) -> int:
    """Tell all who look at a challenge something. For its organisers."""
    with open_client(home) as client:
        found = client.announce_in_challenge(name, text)
    return _told(found, as_json=as_json)


@organise_commands.command("answer")
def answer(
    name: Name,
    number: Annotated[int, argument("QUESTION", "Its number.", min=1)],
    text: Words,
    publish: Annotated[bool, flag("--publish", "Everybody reads the question and the answer.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Answer a question, to its asker or to everybody. Again changes the answer. For organisers."""
    with open_client(home) as client:
        found = client.answer_in_challenge(name, number, text, publish=publish)
    return _told(found, as_json=as_json)


@organise_commands.command("quota")
def quota(
    name: Name,
    team: Annotated[str, argument("TEAM", "Its name.")],
    reason: Annotated[str, option("--reason", "TEXT", "Members read it.")],
    today: Annotated[int, typer.Option("--today", metavar="N", help="Submissions more today; -N: fewer.")] = 0,
    total: Annotated[int, typer.Option("--total", metavar="N", help="Submissions more in the phase of now; -N: fewer.")] = 0,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Give a team submissions more, or take some away. Its members read how many, from whom and why. For organisers."""
    with open_client(home) as client:
        found = client.change_quota(name, team, today=today, total=total, reason=reason)
    return _told(found, as_json=as_json)


@organise_commands.command("report")
def report(
    name: Name,
    output: Annotated[Path | None, option("--output -o", "FILE", "Write it there: .html, .md or .json.")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show what became of a challenge: teams, what failed and why, boards, participation by day. For organisers."""
    with open_client(home) as client:
        found = client.challenge_report(name)
    if as_json:
        return print_found(found)
    if output is None:
        _print_report(found)
        return OK
    output.write_text(_written(found, output.suffix), encoding="utf-8")
    print(f"Written to {output}.")
    return OK


def _written(found: ChallengeReport, suffix: str) -> str:
    from carrel.cli.challenge_site import page
    from carrel.core.challenges.report import markdown
    from carrel.wire.v1 import show

    if suffix == ".json":
        return str(show(found).model_dump_json(indent=2)) + "\n"
    if suffix not in (".html", ".md"):
        raise Invalid(f'A report has no form "{suffix}".', remedy="Name a file that ends with .html, .md or .json.")
    text = markdown(found, public=False)
    return page(found.title, text) if suffix == ".html" else f"# {found.title}\n\n{text}"


def _print_report(found: ChallengeReport) -> None:
    sent = sum(one.submissions for one in found.teams)
    print(f"{clean(found.title)}: {len(found.teams)} teams, {sent} submissions, {found.gpu_hours:.2f} GPU-hours.\n")
    rows = [tuple("-" if cell is None else str(cell) for cell in row) for row in _teams(found)]
    print_table(_TEAM_HEADS, rows, right=range(2, 8))
    if found.failures:
        print()
    log = f"carrel challenge log {found.challenge}"
    failed = [(one.kind, str(one.count), ", ".join(one.teams), f"{log} {one.newest}") for one in found.failures]
    if failed:
        print_table(("FAILED", "COUNT", "TEAMS", "LOG OF THE NEWEST"), failed, right=(1,))


@organise_commands.command("likeness")
def likeness(
    name: Name,
    phase: Annotated[str | None, option("--phase", "NAME", "Which.  [that of now]")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show pairs of teams whose best submissions are alike, in code or in predictions. For organisers. It proves nothing."""
    with open_client(home) as client:
        found = client.challenge_likeness(name, phase)
    if as_json:
        return print_found(found)
    rows = [
        (*one.teams, ", ".join(map(str, one.submissions)), f"{one.code:.0%}", f"{one.predictions:.0%}") for one in found.pairs
    ]
    print_table(("TEAM", "TEAM", "SUBMISSIONS", "CODE", "PREDICTIONS"), rows, right=(3, 4))
    print(
        f"{found.compared} were compared; shown are pairs from {found.code:.0%} of code "
        f"or {found.predictions:.0%} of predictions on."
    )
    print("That two are alike proves nothing: right predictions are equal, and much code comes from the same examples.")
    return OK


@organise_commands.command("export")
def export(
    name: Name,
    directory: Annotated[Path, argument("DIRECTORY", "It is made if it is not there.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Write submissions, teams, failures and boards as CSV, and the report as JSON. For organisers."""
    with open_client(home) as client:
        found, sent = client.challenge_report(name), client.challenge_submissions(name)
    directory.mkdir(parents=True, exist_ok=True)
    tables = _tables(found, sent)
    for file, (heads, rows) in tables.items():
        _write_csv(directory / file, heads, rows)
    (directory / "report.json").write_text(_written(found, ".json"), encoding="utf-8")
    written = sorted([*tables, "report.json"])
    if as_json:
        return print_json({"directory": str(directory), "files": written})
    print(f"Written to {directory}: {', '.join(written)}.")
    return OK


Table = tuple[Sequence[str], Iterable[Sequence[object]]]
_TEAM_HEADS = ("TEAM", "MEMBERS", "SUBMISSIONS", "SCORED", "FAILED", "LEFT TODAY", "LEFT IN ALL", "GPU-HOURS")


def _teams(found: ChallengeReport) -> Iterable[Sequence[object]]:
    for one in found.teams:
        counts = (one.submissions, one.scored, one.failed, one.today, one.total, round(one.gpu_hours, 3))
        yield one.name, ", ".join(one.members), *counts


def _tables(found: ChallengeReport, sent: SubmissionList) -> dict[str, Table]:
    columns = list(dict.fromkeys(column for one in sent.submissions for column in one.submission.scores))
    heads = ("number", "team", "phase", "by", "state", "fault", "sent", "ended", "code", *columns)
    lines = [
        (
            s.id,
            s.team,
            s.phase,
            s.by,
            s.state.value,
            s.fault or "",
            s.made_at,
            s.ended_at,
            s.snapshot,
            *(s.scores.get(c) for c in columns),
        )
        for s in (one.submission for one in sent.submissions)
    ]
    failed = [(one.kind, team, count, one.newest) for one in found.failures for team, count in one.teams.items()]
    tables: dict[str, Table] = {
        "submissions.csv": (heads, lines),
        "teams.csv": ([head.lower() for head in _TEAM_HEADS], _teams(found)),
        "failures.csv": (("kind", "team", "submissions", "newest of the kind"), failed),
    }
    for board in found.boards:
        rows = [
            (one.rank, one.team, one.baseline, one.submission, one.made_at, *(one.scores[c.column] for c in board.columns))
            for one in board.places
        ]
        heads = ("rank", "team", "baseline", "submission", "sent", *(column.column for column in board.columns))
        tables[f"board-{board.phase}.csv"] = (heads, rows)
    return tables


def _write_csv(file: Path, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as out:
        print_csv(heads, rows, out)


def _told(found: ChallengeNotice, *, as_json: bool) -> int:
    if as_json:
        return print_found(found)
    print_notice(found)
    return OK
