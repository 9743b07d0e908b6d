"""`carrel challenge`: shared tasks whose test data no participant sees."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.challenge_new import new_challenge, try_code
from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home, open_client

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.core.domain.challenge import Board, ChallengeView, PhaseView, SubmissionList, SubmissionView

challenge_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Take part in challenges, and run them: shared tasks whose test data no participant sees.",
)
Name = Annotated[str, typer.Argument(metavar="CHALLENGE", help="Name of the challenge.", show_default=False)]
challenge_command.command("new")(new_challenge)
challenge_command.command("try")(try_code)
#: Seconds between two looks at submissions that one waits for.
_LOOK = 1.0


@challenge_command.command("list")
def list_challenges(home: Home = None, as_json: AsJson = False) -> int:
    """List challenges: those that are published, and drafts of your own."""
    from carrel.cli.screen import print_table
    from carrel.cli.words import local

    with open_client(home) as client:
        found = client.challenges()
    if as_json:
        return _print(found)
    rows = [
        (one.name, one.title, one.state, one.phase or "-", local(one.end) if one.end else "-", str(one.teams), one.team or "-")
        for one in found.challenges
    ]
    print_table(("NAME", "TITLE", "STATE", "PHASE", "UNTIL", "TEAMS", "YOUR TEAM"), rows, right=(5,))
    return OK


@challenge_command.command("show")
def show(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Show a challenge: its pages, its phases, your team, and what is left to it."""
    with open_client(home) as client:
        found = client.challenge(name)
    if as_json:
        return _print(found)
    from carrel.cli.screen import clean, paint

    print(f"{paint(clean(found.title), 'bold')}  ({found.name}, {found.state}, {found.teams} teams)")
    for title, text in found.pages.items():
        print(f"\n{paint(clean(title), 'bold')}\n{_lines(text)}")
    if found.rules:
        print(f"\n{paint('Rules', 'bold')}\n{_lines(found.rules)}")
    print()
    for phase in found.phases:
        _print_phase(phase, now=phase.name == found.phase)
    if found.team is None:
        print(paint(f"  take part: carrel challenge join {name}" + (" --accept-rules" if found.rules else ""), "dim"))
        return OK
    print(
        f"Your team: {clean(found.team.name)} ({', '.join(map(clean, found.team.members))}). Others join with {found.team.code}."
    )
    if found.train:
        print(f"Training data, for your sessions and tasks: {found.train}")
    return OK


def _print_phase(phase: PhaseView, *, now: bool) -> None:
    from carrel.cli.screen import paint
    from carrel.cli.words import local

    left = ""
    if phase.today is not None and phase.total is not None:
        left = f"; left: {min(phase.today, phase.total)} today, {phase.total} in all"
    limits = f"{phase.limits.per_day} a day, {phase.limits.total} in all, {phase.limits.at_once} at once"
    print(f"{paint(phase.name, 'bold' if now else 'dim')}  {local(phase.begin)} to {local(phase.end)}; {limits}{left}")


@challenge_command.command("join")
def join(
    name: Name,
    team: Annotated[str, typer.Option("--team", metavar="NAME", help="Name of a new team.  [your own]", show_default=False)] = "",
    code: Annotated[
        str, typer.Option("--code", metavar="CODE", help="Join the team whose member has given you this.", show_default=False)
    ] = "",
    accept_rules: Annotated[bool, typer.Option("--accept-rules", help="You have read the rules, and accept them.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Take part in a challenge, in a team of your own or in that of others."""
    with open_client(home) as client:
        found = client.join_challenge(name, team=team, code=code, accept_rules=accept_rules)
    if as_json:
        return _print(found)
    from carrel.cli.screen import clean

    members = ", ".join(map(clean, found.members))
    print(f"You are in the team {clean(found.name)} ({members}). Others join it with --code {found.code}.")
    print(f"What to begin with: carrel challenge start {name}")
    return OK


@challenge_command.command("start")
def start(
    name: Name,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIRECTORY", help="Where it is written.  [the challenge's name]", show_default=False)
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Get what the challenge begins with: a notebook, mostly. Its training data are there in sessions and tasks of the lab."""
    place = directory or Path(name)
    with open_client(home) as client:
        found = client.challenge(name)
        client.challenge_starter(name, place)
    if found.train and os.path.isdir(found.train) and not os.path.lexists(place / "data"):  # noqa: PTH112
        (place / "data").symlink_to(found.train)
    if as_json:
        from carrel.cli.screen import print_json

        print_json({"directory": str(place), "train": found.train})
        return OK
    print(f"Written to {place}." + (f" Training data: {found.train}" if found.train else ""))
    return OK


@challenge_command.command("submit")
def submit(
    name: Name,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The code.", show_default=False)],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it was scored.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Send a directory of code to the phase of now. It is scored on data that you do not see."""
    with open_client(home) as client:
        found = client.submit_to_challenge(name, directory)
        if wait:
            found = _wait(client, name, found)
    if as_json:
        _print(found)
    else:
        _print_submissions([found])
        if not found.submission.state.ended:
            print(f"How it is doing: carrel challenge submissions {name}")
    return OTHER if found.submission.state.ended and not found.submission.scores else OK


def _wait(client: Client, name: str, found: SubmissionView) -> SubmissionView:
    said = ""
    while not found.submission.state.ended:
        told = _told(found)
        if told != said:
            print(told, file=sys.stderr)
            said = told
        time.sleep(_LOOK)
        found = client.challenge_submission(name, found.submission.id)
    return found


@challenge_command.command("submissions")
def submissions(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """List the submissions of your team, newest first, with what each waits for. Organisers see those of all teams."""
    with open_client(home) as client:
        found = client.challenge_submissions(name)
    if as_json:
        return _print(found)
    _print_submissions(found.submissions)
    return OK


@challenge_command.command("board")
def board(
    name: Name,
    phase: Annotated[
        str | None, typer.Option("--phase", metavar="NAME", help="Which.  [that of now]", show_default=False)
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show who is first: the best submission of each team."""
    with open_client(home) as client:
        found = client.challenge_board(name, phase)
    if as_json:
        return _print(found)
    _print_board(found)
    return OK


@challenge_command.command("check")
def check(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="With a challenge.yaml.", show_default=False)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Send a challenge as a draft, run each baseline through each phase, and say what participants will see.

    For administrators, and those whom its challenge.yaml names as organisers. Nobody else sees the draft.
    """
    with open_client(home) as client:
        made = client.keep_challenge(directory)
        found = _checked(client, made.name)
        view = client.challenge(made.name)
    failed = [one for one in found.submissions if not one.submission.scores]
    if as_json:
        _print(found)
    else:
        _print_submissions(found.submissions)
        _print_promises(view)
        if failed:
            print(f"Why: carrel challenge log {made.name} {failed[0].submission.id}")
        elif made.draft:
            print(f"Show it to everybody: carrel challenge publish {made.name}")
    return OTHER if failed else OK


def _checked(client: Client, name: str) -> SubmissionList:
    told = -1
    while True:
        found = client.challenge_checks(name)
        ended = sum(one.submission.state.ended for one in found.submissions)
        if ended != told:
            print(f"{ended} of {len(found.submissions)} baselines were run ...", file=sys.stderr)
            told = ended
        if ended == len(found.submissions):
            return found
        time.sleep(_LOOK)


def _print_promises(view: ChallengeView) -> None:
    """Say what participants will see."""
    from carrel.cli.screen import clean

    shown = ", ".join(f"{clean(one.title)} to {one.precision} after the point" for one in view.board)
    print(f"Participants see: the pages {', '.join(map(clean, view.pages))}; of each submission its state and {shown}.")
    print(
        "They see the training data, if there are any, in their sessions and tasks; no input and no reference of another split."
    )
    told = f"up to {view.feedback} bytes, where the ingestion refuses the code" if view.feedback else "nothing"
    print(f"Of what is printed while their code runs on inputs: {told}.")
    if view.dry_run:
        print("They can try code on training data, as tasks of their own: there they see all that is printed, and both programs.")
    if left := [clean(title) for title, text in {**view.pages, "Rules": view.rules}.items() if "✏️" in text]:
        print(f"Places to fill in, marked with a pencil, are left in: {', '.join(left)}.")


@challenge_command.command("publish")
def publish(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Show the draft of a challenge to everybody, when all its baselines were scored. For its organisers."""
    with open_client(home) as client:
        found = client.publish_challenge(name)
    if as_json:
        return _print(found)
    print(f"The challenge {found.name} is published: carrel challenge join {found.name}")
    return OK


@challenge_command.command("freeze")
def freeze(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """End a challenge: it takes nothing any more, and its boards stay. For its organisers."""
    with open_client(home) as client:
        found = client.freeze_challenge(name)
    if as_json:
        return _print(found)
    print(f"The challenge {found.name} is frozen.")
    return OK


@challenge_command.command("log")
def log(
    name: Name,
    number: Annotated[int, typer.Argument(metavar="SUBMISSION", help="Its number.", min=1, show_default=False)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print the end of the log of a submission's last job. For organisers: it may show what the programs saw."""
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        found = client.challenge_log(name, number)
    if as_json:
        print_json({"log": found})
    else:
        print(_lines(found))
    return OK


def _print_submissions(found: list[SubmissionView] | tuple[SubmissionView, ...]) -> None:
    from carrel.cli.screen import print_table
    from carrel.cli.words import local

    rows = [
        (
            str(one.submission.id),
            one.submission.team or f"baseline {one.submission.baseline}",
            one.submission.phase,
            one.submission.state.value,
            local(one.submission.made_at),
            ", ".join(f"{column} {value:g}" for column, value in one.submission.scores.items()) or _told(one),
        )
        for one in found
    ]
    print_table(("NUMBER", "TEAM", "PHASE", "STATE", "SENT", "SCORES"), rows)


def _told(one: SubmissionView) -> str:
    from carrel.cli.words import queue

    if one.waits:
        start = None if one.estimated_start is None else datetime.fromtimestamp(one.estimated_start, UTC)
        return queue(one.position, one.waits, start, datetime.now(UTC))
    return one.submission.message or one.submission.stage


def _lines(text: str) -> str:
    from carrel.cli.screen import clean

    return "\n".join(map(clean, text.strip().splitlines()))


def _print_board(found: Board) -> None:
    from carrel.cli.screen import print_table
    from carrel.cli.words import local

    heads = ("RANK", "TEAM", *(column.title.upper() for column in found.columns), "SENT", "ENTRIES")
    rows = [
        (
            str(one.rank),
            one.team or f"({one.baseline})",
            *(f"{one.scores[column.column]:.{column.precision}f}" for column in found.columns),
            local(one.made_at),
            str(one.entries),
        )
        for one in found.places
    ]
    print_table(heads, rows, right=(0, *range(2, 2 + len(found.columns))))


def _print(found: object) -> int:
    from carrel.cli.screen import print_json
    from carrel.wire.v1 import show

    print_json(show(found).model_dump(mode="json"))
    return OK
