"""`carrel challenge`: shared tasks whose test data no participant sees."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carrel.cli.challenge_new import new_challenge, try_code
from carrel.cli.challenge_organise import Name, organise_commands, print_notice
from carrel.cli.challenge_publish import publish_commands
from carrel.cli.challenge_sample import sample
from carrel.cli.challenge_screen import cleaned, print_board, print_bounds, print_found, print_submissions, told_of
from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import clean, paint, print_json, print_table
from carrel.cli.words import local

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.core.domain.challenge import ChallengeView, PhaseView, SubmissionView, TeamView

challenge_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Take part in challenges, and run them: shared tasks whose test data no participant sees.",
)
challenge_command.add_typer(publish_commands)
challenge_command.add_typer(organise_commands)
challenge_command.command("new")(new_challenge)
challenge_command.command("try")(try_code)
challenge_command.command("sample")(sample)
#: Seconds between two looks at submissions that one waits for.
_LOOK = 1.0
#: Notices that `show` prints; `notices` prints all.
_NOTICES = 5


@challenge_command.command("list")
def list_challenges(home: Home = None, as_json: AsJson = False) -> int:
    """List challenges: those that are published, and drafts of your own."""
    with open_client(home) as client:
        found = client.challenges()
    if as_json:
        return print_found(found)
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
        told = client.challenge_notices(name).notices
    if as_json:
        return print_found(found)
    print(f"{paint(clean(found.title), 'bold')}  ({found.name}, {found.state}, {found.teams} teams)")
    for title, text in found.pages.items():
        print(f"\n{paint(clean(title), 'bold')}\n{cleaned(text)}")
    if found.rules:
        print(f"\n{paint('Rules', 'bold')}\n{cleaned(found.rules)}")
    print()
    for phase in found.phases:
        _print_phase(phase, now=phase.name == found.phase)
    print_bounds(found)
    for notice in told[:_NOTICES]:
        print_notice(notice)
    if not found.rules_accepted:
        print(paint(f"The rules have changed. Accept them again: carrel challenge join {name} --accept-rules", "yellow"))
    for asked, choices in found.asks.items():
        print(f"Asked at joining (--answer {asked}=…): {', '.join(map(clean, choices))}")
    if found.team is None:
        print(paint(f"  take part: carrel challenge join {name}" + (" --accept-rules" if found.rules else ""), "dim"))
        return OK
    _print_team(found.team, name)
    if found.cost:
        print(f"A submission takes at most {found.cost.words}.")
    if found.train:
        print(f"Training data, for your sessions and tasks: {found.train}")
    if found.sampling:
        print(f"Training data are shown one by one, {found.sampling.words}: carrel challenge sample {name}")
    return OK


def _print_phase(phase: PhaseView, *, now: bool) -> None:
    if phase.final:
        ways = {
            "team": "that each team chooses",
            "best": "of each team that are best",
            "last": "of each team that were sent last",
        }
        limits = f"scores those of {phase.final.source} again, up to {phase.final.number} {ways[phase.final.choose]}"
    else:
        hours = "" if phase.limits.gpu_hours is None else f", {phase.limits.gpu_hours:g} GPU-hours"
        limits = f"{phase.limits.per_day} a day, {phase.limits.total} in all, {phase.limits.at_once} at once{hours}"
    print(f"{paint(phase.name, 'bold' if now else 'dim')}  {local(phase.begin)} to {local(phase.end)}; {limits}")
    if now:
        _print_left(phase)


def _print_left(phase: PhaseView | None) -> None:
    if phase is not None and phase.left:
        print(f"Left in {phase.name}: {phase.left}. The next day begins at {local(phase.next_day)}.")
        if phase.refusal:
            print(f"Now: {phase.refusal}")


def _print_team(team: TeamView, name: str) -> None:
    print(f"Your team: {clean(team.name)} ({', '.join(map(clean, team.members))}). Others join with {team.code}.")
    for other in team.asked_by:
        print(f"The team {clean(other)} asks to merge with it. To agree: carrel challenge merge {name} --team '{clean(other)}'")
    if team.asked:
        print(f"It asks the team {clean(team.asked)} to merge.")
    if team.chosen:
        print(f"Chosen for the final: {', '.join(map(str, team.chosen))}")


@challenge_command.command("invite")
def invite(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Give your team a new code, with which others join. The one before is void."""
    with open_client(home) as client:
        found = client.new_team_code(name)
    return print_found(found) if as_json else _show_team(found, name)


@challenge_command.command("leave")
def leave(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Leave your team. What it has sent stays its own, and counts against your limits in another team."""
    with open_client(home) as client:
        client.leave_challenge(name)
    if as_json:
        return print_json({"left": name})
    print("You have left your team, and see nothing of it any more.")
    return OK


@challenge_command.command("merge")
def merge(
    name: Name,
    code: Annotated[str, option("--code", "CODE", "Ask the team that has this code.")] = "",
    team: Annotated[str, option("--team", "NAME", "Agree with this team.")] = "",
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Ask another team to merge with yours, or agree with one that has asked: then it is a part of yours."""
    with open_client(home) as client:
        found = client.merge_teams(name, code=code, team=team)
    return print_found(found) if as_json else _show_team(found, name)


@challenge_command.command("choose")
def choose(
    name: Name,
    numbers: Annotated[list[int], argument("SUBMISSION...", "Their numbers.", min=1)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Choose which submissions of your team go on to the next final, in the place of what was chosen before."""
    with open_client(home) as client:
        found = client.choose_submissions(name, numbers)
    return print_found(found) if as_json else _show_team(found, name)


def _show_team(team: TeamView, name: str) -> int:
    _print_team(team, name)
    return OK


@challenge_command.command("join")
def join(
    name: Name,
    team: Annotated[str, option("--team", "NAME", "Name of a new team.  [your own]")] = "",
    code: Annotated[str, option("--code", "CODE", "Join the team whose member has given you this.")] = "",
    accept_rules: Annotated[bool, flag("--accept-rules", "You have read the rules, and accept them.")] = False,
    answers: Annotated[list[str], option("--answer", "NAME=ANSWER", "To what the challenge asks; you may leave it out.")] = [],  # noqa: B006 - typer reads it
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Take part in a challenge, in a team of your own or in that of others."""
    with open_client(home) as client:
        given = {key: value for key, _, value in (one.partition("=") for one in answers)}
        found = client.join_challenge(name, team=team, code=code, accept_rules=accept_rules, answers=given)
    if as_json:
        return print_found(found)
    members = ", ".join(map(clean, found.members))
    print(f"You are in the team {clean(found.name)} ({members}). Others join it with --code {found.code}.")
    print(f"What to begin with: carrel challenge start {name}")
    return OK


@challenge_command.command("start")
def start(
    name: Name,
    directory: Annotated[Path | None, argument("DIRECTORY", "Where it is written.  [the challenge's name]")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Get what the challenge begins with: a notebook, mostly. Its training data are there in sessions and tasks of the lab."""
    place = directory or Path(name)
    with open_client(home) as client:
        found = client.challenge(name)
        client.challenge_starter(name, place)
        page = f"{client.url}/challenges/{name}"
    if found.train and os.path.isdir(found.train) and not os.path.lexists(place / "data"):  # noqa: PTH112
        (place / "data").symlink_to(found.train)
    if as_json:
        return print_json({"directory": str(place), "train": found.train})
    print(f"Written to {place}." + (f" Training data: {found.train}" if found.train else ""))
    print(f"Start on its page opens the notebook in a session of the lab: {page}")
    if (place / "submission").is_dir():
        print(f"To try the code that it begins with: carrel challenge try {name} {place / 'submission'}")
    return OK


@challenge_command.command("submit")
def submit(
    name: Name,
    directory: Annotated[Path, argument("DIRECTORY", "The code.")],
    wait: Annotated[bool, flag("--wait", "Wait until it was scored.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Say what it costs at most, and what is left; send nothing.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Send a directory of code to the phase of now. It is scored on data that you do not see."""
    with open_client(home) as client:
        shown = client.challenge(name)
        if dry_run:
            return _dry_run(shown, as_json=as_json)
        if shown.cost and not as_json:
            print(f"It takes at most {shown.cost.words}.")
        found = client.submit_to_challenge(name, directory)
        after = found.phase
        if wait:
            found = _wait(client, name, found)
            after = client.challenge_submissions(name).phase
    if as_json:
        print_found(found)
    else:
        print_submissions([found])
        _print_left(after)
        if not found.submission.state.ended:
            print(f"How it is doing: carrel challenge submissions {name}")
    return OTHER if found.submission.state.value == "FAILED" else OK


def _dry_run(found: ChallengeView, *, as_json: bool) -> int:
    """Say what a submission costs at most, and what is left. Returns the code of failures where it would be refused."""
    from carrel.wire.v1 import show

    phase = next((one for one in found.phases if one.name == found.phase and one.left), None)
    refused = phase.refusal if phase else "Your team can send nothing now: it is in no team, or no phase takes submissions."
    if as_json:
        shown = {key: value and show(value).model_dump(mode="json") for key, value in (("cost", found.cost), ("phase", phase))}
        print_json({**shown, "refused": refused})
    else:
        if found.cost:
            print(f"It would take at most {found.cost.words}.")
        _print_left(phase)
        if phase is None:
            print(refused)
    return OTHER if refused else OK


def _wait(client: Client, name: str, found: SubmissionView) -> SubmissionView:
    said = ""
    while not found.submission.state.ended:
        told = told_of(found)
        if told != said:
            print(told, file=sys.stderr)
            said = told
        time.sleep(_LOOK)
        found = client.challenge_submission(name, found.submission.id)
    return found


@challenge_command.command("submissions")
def submissions(
    name: Name,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most so many.")] = 100,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """List the submissions of your team, newest first, with what each waits for. Organisers see those of all teams."""
    with open_client(home) as client:
        found = client.challenge_submissions(name, limit=limit)
    if as_json:
        return print_found(found)
    print_submissions(found.submissions)
    if found.next is not None:
        print(f"There are older ones: carrel challenge submissions {name} --limit {10 * limit}")
    _print_left(found.phase)
    return OK


@challenge_command.command("board")
def board(
    name: Name,
    phase: Annotated[str | None, option("--phase", "NAME", "Which.  [that of now]")] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show who is first: the best submission of each team."""
    with open_client(home) as client:
        found = client.challenge_board(name, phase)
    if as_json:
        return print_found(found)
    print_board(found)
    return OK
