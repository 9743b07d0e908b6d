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
from carrel.cli.challenge_organise import organise_commands, print_notice
from carrel.cli.challenge_sample import sample
from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home, open_client

if TYPE_CHECKING:
    from carrel.client import Client
    from carrel.core.domain.challenge import (
        Board,
        ChallengeSubmission,
        ChallengeView,
        Column,
        PhaseView,
        Place,
        Rescore,
        SubmissionList,
        SubmissionView,
        TeamView,
    )

challenge_command = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Take part in challenges, and run them: shared tasks whose test data no participant sees.",
)
challenge_command.add_typer(organise_commands)
Name = Annotated[str, typer.Argument(metavar="CHALLENGE", help="Name of the challenge.", show_default=False)]
challenge_command.command("new")(new_challenge)
challenge_command.command("try")(try_code)
challenge_command.command("sample")(sample)
#: Seconds between two looks at submissions that one waits for.
_LOOK = 1.0
#: Words for a submission that waits for nothing.
_DOES = {"ingestion": "Its code runs.", "scoring": "It is being scored."}
#: Notices that `show` prints; `notices` prints all.
_NOTICES = 5


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
        told = client.challenge_notices(name).notices
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
    _print_bounds(found)
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
    from carrel.cli.screen import paint
    from carrel.cli.words import local

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
    from carrel.cli.words import local

    if phase is not None and phase.left:
        print(f"Left in {phase.name}: {phase.left}. The next day begins at {local(phase.next_day)}.")
        if phase.refusal:
            print(f"Now: {phase.refusal}")


def _print_team(team: TeamView, name: str) -> None:
    from carrel.cli.screen import clean

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
    return _print(found) if as_json else _show_team(found, name)


@challenge_command.command("leave")
def leave(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Leave your team. What it has sent stays its own, and counts against your limits in another team."""
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        client.leave_challenge(name)
    if as_json:
        print_json({"left": name})
    else:
        print("You have left your team, and see nothing of it any more.")
    return OK


@challenge_command.command("merge")
def merge(
    name: Name,
    code: Annotated[
        str, typer.Option("--code", metavar="CODE", help="Ask the team that has this code.", show_default=False)
    ] = "",
    team: Annotated[str, typer.Option("--team", metavar="NAME", help="Agree with this team.", show_default=False)] = "",
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Ask another team to merge with yours, or agree with one that has asked: then it is a part of yours."""
    with open_client(home) as client:
        found = client.merge_teams(name, code=code, team=team)
    return _print(found) if as_json else _show_team(found, name)


@challenge_command.command("choose")
def choose(
    name: Name,
    numbers: Annotated[list[int], typer.Argument(metavar="SUBMISSION...", help="Their numbers.", min=1, show_default=False)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Choose which submissions of your team go on to the next final, in the place of what was chosen before."""
    with open_client(home) as client:
        found = client.choose_submissions(name, numbers)
    return _print(found) if as_json else _show_team(found, name)


def _show_team(team: TeamView, name: str) -> int:
    _print_team(team, name)
    return OK


@challenge_command.command("join")
def join(
    name: Name,
    team: Annotated[str, typer.Option("--team", metavar="NAME", help="Name of a new team.  [your own]", show_default=False)] = "",
    code: Annotated[
        str, typer.Option("--code", metavar="CODE", help="Join the team whose member has given you this.", show_default=False)
    ] = "",
    accept_rules: Annotated[bool, typer.Option("--accept-rules", help="You have read the rules, and accept them.")] = False,
    answers: Annotated[
        list[str],
        typer.Option(
            "--answer", metavar="NAME=ANSWER", help="To what the challenge asks; you may leave it out.", show_default=False
        ),
    ] = [],  # noqa: B006 - typer reads it
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Take part in a challenge, in a team of your own or in that of others."""
    with open_client(home) as client:
        given = {key: value for key, _, value in (one.partition("=") for one in answers)}
        found = client.join_challenge(name, team=team, code=code, accept_rules=accept_rules, answers=given)
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
        page = f"{client.url}/challenges/{name}"
    if found.train and os.path.isdir(found.train) and not os.path.lexists(place / "data"):  # noqa: PTH112
        (place / "data").symlink_to(found.train)
    if as_json:
        from carrel.cli.screen import print_json

        print_json({"directory": str(place), "train": found.train})
        return OK
    print(f"Written to {place}." + (f" Training data: {found.train}" if found.train else ""))
    print(f"Start on its page opens the notebook in a session of the lab: {page}")
    if (place / "submission").is_dir():
        print(f"To try the code that it begins with: carrel challenge try {name} {place / 'submission'}")
    return OK


@challenge_command.command("submit")
def submit(
    name: Name,
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="The code.", show_default=False)],
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it was scored.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it costs at most, and what is left; send nothing.")
    ] = False,
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
        _print(found)
    else:
        _print_submissions([found])
        _print_left(after)
        if not found.submission.state.ended:
            print(f"How it is doing: carrel challenge submissions {name}")
    return OTHER if found.submission.state.value == "FAILED" else OK


def _dry_run(found: ChallengeView, *, as_json: bool) -> int:
    """Say what a submission costs at most, and what is left. Returns the code of failures where it would be refused."""
    from carrel.cli.screen import print_json
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
        told = _told(found)
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
        return _print(found)
    _print_submissions(found.submissions)
    if found.next is not None:
        print(f"There are older ones: carrel challenge submissions {name} --limit {10 * limit}")
    _print_left(found.phase)
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
        view = client.challenge(made.name, draft=True)
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
    seen = "the training data, if there are any, in their sessions and tasks"
    if view.sampling:
        seen = f"of the training data {view.sampling.words}, for each team; their code has all of them where it is scored"
    print(f"They see {seen}; no input and no reference of another split.")
    told = f"up to {view.feedback} bytes, where the ingestion refuses the code" if view.feedback else "nothing"
    print(f"Of what is printed while their code runs on inputs: {told}.")
    if view.dry_run:
        print("They can try code on training data, as tasks of their own: there they see all that is printed, and both programs.")
    if left := [clean(title) for title, text in {**view.pages, "Rules": view.rules}.items() if "✏️" in text]:
        print(f"Places to fill in, marked with a pencil, are left in: {', '.join(left)}.")
    _print_bounds(view)


def _print_bounds(view: ChallengeView) -> None:
    """Say what is held back; to organisers, how much a team can learn."""
    from carrel.cli.screen import clean

    for sentence in view.withheld:
        print(clean(sentence))
    for one in view.bounds:
        print(f"What a team can learn in {one.phase}:")
        for sentence in one.words:
            print(f"  {clean(sentence)}")


@challenge_command.command("publish")
def publish(
    name: Name,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Why dates, limits, rules or boards change: everybody reads it.", show_default=False
        ),
    ] = "",
    without_failed: Annotated[
        bool, typer.Option("--without-failed", help="What could not be scored again loses its place.")
    ] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show the draft of a challenge to everybody, when all its baselines were scored. For its organisers.

    Where the draft scores otherwise, all that was scored before has to be scored by it first: see rescore.
    """
    with open_client(home) as client:
        found = client.publish_challenge(name, reason=reason, without_failed=without_failed)
    if as_json:
        return _print(found)
    print(f"The challenge {found.name} is published. People of the lab take part: carrel challenge join {found.name}")
    print("Others need an invitation to the lab first: carrel user invite NAME")
    return OK


@challenge_command.command("freeze")
def freeze(
    name: Name,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIRECTORY", help="Write its public pages and results there, as HTML.", show_default=False
        ),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """End a challenge: it takes nothing any more, and its boards stay. For its organisers."""
    from carrel.cli.challenge_site import check_place, write_site

    if output is not None:
        check_place(output)
    with open_client(home) as client:
        found = client.freeze_challenge(name)
        if output is not None:
            write_site(output, client.challenge(name), client.challenge_report(name))
    if as_json:
        return _print(found)
    print(f"The challenge {found.name} is frozen." + (f" Its pages are in {output}." if output else ""))
    return OK


@challenge_command.command("log")
def log(
    name: Name,
    number: Annotated[int, typer.Argument(metavar="SUBMISSION", help="Its number.", min=1, show_default=False)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print the end of the log of a submission's last job. For organisers: it may show what the programs saw.

    Its team gets the end of what its own code printed, where the challenge says so, when the submission has ended.
    """
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        found = client.challenge_log(name, number)
    if as_json:
        print_json({"log": found})
    else:
        print(_lines(found))
    return OK


@challenge_command.command("rescore")
def rescore(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Score all submissions by the draft, from the predictions that the lab has kept, and show old beside new.

    Boards stay as they are until the draft is published. For organisers.
    """
    with open_client(home) as client:
        found = client.rescore_challenge(name)
        told = -1
        while (ended := sum(bool(one.after and one.after.state.ended) for one in found.lines)) < len(found.lines):
            if ended != told:
                print(f"{ended} of {len(found.lines)} submissions were scored again ...", file=sys.stderr)
                told = ended
            time.sleep(_LOOK)
            found = client.rescore_challenge(name, ask=False)
    failed = any(one.after and one.after.state.value == "FAILED" for one in found.lines)
    if as_json:
        _print(found)
    else:
        _print_rescore(found)
        if failed:
            print(f"Why: carrel challenge log {name} AGAIN; without places for them: publish --without-failed")
        if found.lines:
            print(f'Show it: carrel challenge publish {name} --reason "…"')
    return OTHER if failed else OK


def _print_rescore(found: Rescore) -> None:
    from carrel.cli.screen import print_table

    rows = [
        (
            one.before.phase,
            str(one.before.id),
            one.before.team or f"({one.before.baseline})",
            *(_scores(each) if each else "-" for each in (one.before, one.after)),
            f"{one.rank or '-'}",
            f"{one.new_rank or '-'}",
            f"{one.after.id if one.after else '-'}",
        )
        for one in found.lines
    ]
    print_table(("PHASE", "NUMBER", "TEAM", "BEFORE", "AFTER", "RANK", "NEW RANK", "AGAIN"), rows)


@challenge_command.command("record")
def record(
    name: Name,
    number: Annotated[int, typer.Argument(metavar="SUBMISSION", help="Its number.", min=1, show_default=False)],
    home: Home = None,
    as_json: AsJson = False,  # noqa: ARG001 - it is JSON in any case
) -> int:
    """Print what explains a score, as JSON: code, environment, scores. Organisers get digests, and the records of its jobs."""
    from carrel.cli.screen import print_json

    with open_client(home) as client:
        print_json(client.challenge_record(name, number))
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
            _scores(one.submission) + _shown(one) if one.submission.scores else _told(one),
        )
        for one in found
    ]
    print_table(("NUMBER", "TEAM", "PHASE", "STATE", "SENT", "SCORES"), rows)


def _shown(one: SubmissionView) -> str:
    said = ", ".join(f"{column} {value:g}" for column, value in one.shown.items())
    return f" (its team sees {said})" if said else ""


def _scores(one: ChallengeSubmission) -> str:
    return ", ".join(f"{column} {value:g}" for column, value in one.scores.items()) or one.message or one.state.value


def _told(one: SubmissionView) -> str:
    from carrel.cli.words import queue

    if one.waits:
        start = None if one.estimated_start is None else datetime.fromtimestamp(one.estimated_start, UTC)
        return queue(one.position, one.waits, start, datetime.now(UTC))
    return one.submission.message or _DOES.get(one.submission.stage, "")


def _lines(text: str) -> str:
    from carrel.cli.screen import clean

    return "\n".join(map(clean, text.strip().splitlines()))


def _print_board(found: Board) -> None:
    from carrel.cli.screen import clean, print_table
    from carrel.cli.words import local

    heads = ("RANK", "TEAM", *(column.title.upper() for column in found.columns), "SENT", "ENTRIES")

    def score(one: Place, column: Column) -> str:
        low, high = one.intervals.get(column.column, (None, None))
        shown = f"{one.scores[column.column]:.{column.precision}f}"
        return shown if low is None else f"{shown} [{low:.{column.precision}f}, {high:.{column.precision}f}]"

    if found.opens is not None:
        print(f"Teams see this board from {local(found.opens)} on.")
    if found.rescored is not None:
        print(f"All were scored again on {local(found.rescored.at)}: {clean(found.rescored.reason)}")
    rows = [
        (
            f"{'~' if one.differs is False else ''}{one.rank}",
            one.team or f"({one.baseline})",
            *(score(one, column) for column in found.columns),
            local(one.made_at),
            str(one.entries),
        )
        for one in found.places
    ]
    print_table(heads, rows, right=(0, *range(2, 2 + len(found.columns))))
    if any(one.differs is False for one in found.places):
        print("~ does not differ from the line above: with other test data of this kind their order may turn.")


def _print(found: object) -> int:
    from carrel.cli.screen import print_json
    from carrel.wire.v1 import show

    print_json(show(found).model_dump(mode="json"))
    return OK
