"""Commands of `carrel challenge` for those who make one: check it, publish it, score again, end it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from carrel.cli.challenge_organise import Name
from carrel.cli.challenge_screen import cleaned, print_bounds, print_found, print_submissions, scores_of
from carrel.cli.endings import OK, OTHER
from carrel.cli.options import AsJson, Home, argument, flag, open_client, option
from carrel.cli.screen import clean, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from carrel.core.domain.challenge import ChallengeView, Rescore

T = TypeVar("T")
publish_commands = typer.Typer()
#: Seconds between two looks at what is run.
_LOOK = 1.0


@publish_commands.command("check")
def check(
    directory: Annotated[Path, argument("DIRECTORY", "With a challenge.yaml.")],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Send a challenge as a draft, run each baseline through each phase, and say what participants will see.

    For administrators, and those whom its challenge.yaml names as organisers. Nobody else sees the draft.
    """
    with open_client(home) as client:
        made = client.keep_challenge(directory)
        found = _ended(
            lambda: client.challenge_checks(made.name),
            lambda found: (one.submission.state.ended for one in found.submissions),
            "baselines were run",
        )
        view = client.challenge(made.name, draft=True)
    failed = [one for one in found.submissions if not one.submission.scores]
    if as_json:
        print_found(found)
    else:
        print_submissions(found.submissions)
        _print_promises(view)
        if failed:
            print(f"Why: carrel challenge log {made.name} {failed[0].submission.id}")
        elif made.draft:
            print(f"Show it to everybody: carrel challenge publish {made.name}")
    return OTHER if failed else OK


def _ended(look: Callable[[], T], states: Callable[[T], Iterable[bool]], done: str) -> T:
    """Look until all of these have ended, and say on stderr how many have."""
    told = -1
    while True:
        found = look()
        ended = [*states(found)]
        if sum(ended) != told:
            told = sum(ended)
            print(f"{told} of {len(ended)} {done} ...", file=sys.stderr)
        if told == len(ended):
            return found
        time.sleep(_LOOK)


def _print_promises(view: ChallengeView) -> None:
    """Say what participants will see."""
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
    print_bounds(view)


@publish_commands.command("publish")
def publish(
    name: Name,
    reason: Annotated[str, option("--reason", "TEXT", "Why dates, limits, rules or boards change: everybody reads it.")] = "",
    without_failed: Annotated[bool, flag("--without-failed", "What could not be scored again loses its place.")] = False,
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Show the draft of a challenge to everybody, when all its baselines were scored. For its organisers.

    Where the draft scores otherwise, all that was scored before has to be scored by it first: see rescore.
    """
    with open_client(home) as client:
        found = client.publish_challenge(name, reason=reason, without_failed=without_failed)
    if as_json:
        return print_found(found)
    print(f"The challenge {found.name} is published. People of the lab take part: carrel challenge join {found.name}")
    print("Others need an invitation to the lab first: carrel user invite NAME")
    return OK


@publish_commands.command("freeze")
def freeze(
    name: Name,
    output: Annotated[
        Path | None, option("--output -o", "DIRECTORY", "Write its public pages and results there, as HTML.")
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
        going_on = sum(not one.submission.state.ended for one in client.challenge_submissions(name).submissions)
        if output is not None:
            write_site(output, client.challenge(name), client.challenge_report(name))
    if as_json:
        return print_found(found)
    print(f"The challenge {found.name} is frozen." + (f" Its pages are in {output}." if output else ""))
    if going_on:
        print(f"{going_on} of its submissions have not ended: write its pages again when they have, into another directory.")
    return OK


@publish_commands.command("log")
def log(
    name: Name,
    number: Annotated[int, argument("SUBMISSION", "Its number.", min=1)],
    home: Home = None,
    as_json: AsJson = False,
) -> int:
    """Print the end of the log of a submission's last job. For organisers: it may show what the programs saw.

    Its team gets the end of what its own code printed, where the challenge says so, when the submission has ended.
    """
    with open_client(home) as client:
        found = client.challenge_log(name, number)
    if as_json:
        return print_json({"log": found})
    print(cleaned(found))
    return OK


@publish_commands.command("rescore")
def rescore(name: Name, home: Home = None, as_json: AsJson = False) -> int:
    """Score all submissions by the draft, from the predictions that the lab has kept, and show old beside new.

    Boards stay as they are until the draft is published. For organisers.
    """
    with open_client(home) as client:
        client.rescore_challenge(name)
        found = _ended(
            lambda: client.rescore_challenge(name, ask=False),
            lambda found: (bool(one.after and one.after.state.ended) for one in found.lines),
            "submissions were scored again",
        )
    failed = any(one.after and one.after.state.value == "FAILED" for one in found.lines)
    if as_json:
        print_found(found)
    else:
        _print_rescore(found)
        if failed:
            print(f"Why: carrel challenge log {name} AGAIN; without places for them: publish --without-failed")
        if found.lines:
            print(f'Show it: carrel challenge publish {name} --reason "…"')
    return OTHER if failed else OK


def _print_rescore(found: Rescore) -> None:
    rows = [
        (
            one.before.phase,
            str(one.before.id),
            one.before.team or f"({one.before.baseline})",
            *(scores_of(each) if each else "-" for each in (one.before, one.after)),
            f"{one.rank or '-'}",
            f"{one.new_rank or '-'}",
            f"{one.after.id if one.after else '-'}",
        )
        for one in found.lines
    ]
    print_table(("PHASE", "NUMBER", "TEAM", "BEFORE", "AFTER", "RANK", "NEW RANK", "AGAIN"), rows)


@publish_commands.command("record")
def record(
    name: Name,
    number: Annotated[int, argument("SUBMISSION", "Its number.", min=1)],
    home: Home = None,
    as_json: AsJson = False,  # noqa: ARG001 - it is JSON in any case
) -> int:
    """Print what explains a score, as JSON: code, environment, scores. Organisers get digests, and the records of its jobs."""
    with open_client(home) as client:
        print_json(client.challenge_record(name, number))
    return OK
