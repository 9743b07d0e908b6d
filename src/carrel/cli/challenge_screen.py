"""Challenges as a terminal shows them: submissions, boards, and what teams are told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from carrel.cli.screen import clean, print_json, print_table
from carrel.cli.words import local, queue

if TYPE_CHECKING:
    from carrel.core.domain.challenge import Board, ChallengeSubmission, ChallengeView, Column, Place, SubmissionView

#: Words for a submission that waits for nothing.
_DOES = {"ingestion": "Its code runs.", "scoring": "It is being scored."}


def print_submissions(found: list[SubmissionView] | tuple[SubmissionView, ...]) -> None:
    """Print submissions as a table: with their scores, or why there are none."""
    rows = [
        (
            str(one.submission.id),
            one.submission.team or f"baseline {one.submission.baseline}",
            one.submission.phase,
            one.submission.state.value,
            local(one.submission.made_at),
            scores_of(one.submission) + _shown(one) if one.submission.scores else told_of(one),
        )
        for one in found
    ]
    print_table(("NUMBER", "TEAM", "PHASE", "STATE", "SENT", "SCORES"), rows)


def _shown(one: SubmissionView) -> str:
    said = ", ".join(f"{column} {value:g}" for column, value in one.shown.items())
    return f" (its team sees {said})" if said else ""


def scores_of(one: ChallengeSubmission) -> str:
    """The scores of a submission on one line; why it has none."""
    return ", ".join(f"{column} {value:g}" for column, value in one.scores.items()) or one.message or one.state.value


def told_of(one: SubmissionView) -> str:
    """What a submission waits for, or why it failed."""
    if one.waits:
        start = None if one.estimated_start is None else datetime.fromtimestamp(one.estimated_start, UTC)
        return queue(one.position, one.waits, start, datetime.now(UTC))
    return one.submission.message or _DOES.get(one.submission.stage, "")


def cleaned(text: str) -> str:
    """Text of a user's, line by line, as a terminal may show it."""
    return "\n".join(map(clean, text.strip().splitlines()))


def print_board(found: Board) -> None:
    """Print who is first."""
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


def print_bounds(view: ChallengeView) -> None:
    """Say what is held back; to organisers, how much a team can learn."""
    for sentence in view.withheld:
        print(clean(sentence))
    for one in view.bounds:
        print(f"What a team can learn in {one.phase}:")
        for sentence in one.words:
            print(f"  {clean(sentence)}")


def print_found(found: object) -> int:
    """Print what was found as JSON."""
    from carrel.wire.v1 import show

    return print_json(show(found).model_dump(mode="json"))
