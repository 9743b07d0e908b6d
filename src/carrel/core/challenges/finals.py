"""Finals: which submissions of an earlier phase are scored again, and which of those are still to be sent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from carrel.core.challenges.board import order
from carrel.core.domain.challenge import ChallengeSubmission, Choice, Column, Fault, Final, SubmissionState

#: How often a submission is sent to a final again where the lab could not carry it out.
TRIES = 5


def chosen(
    final: Final, columns: Sequence[Column], submissions: Iterable[ChallengeSubmission], wanted: Collection[int]
) -> Sequence[ChallengeSubmission]:
    """Return those of a team's submissions that go on, in the order in which they were sent.

    Only what was scored goes on. What the team `wanted` comes first where it chooses; its best ones take the places that it has
    left open. A score that the board did not have then counts as none.
    """
    scored = [
        one
        for one in submissions
        if one.phase == final.source
        and one.state is SubmissionState.COMPLETED
        and all(column.column in one.scores for column in columns)
    ]
    scored.sort(key=lambda one: (-one.made_at, -one.id) if final.choose is Choice.LAST else order(columns, one))
    if final.choose is Choice.TEAM:
        scored.sort(key=lambda one: one.id not in wanted)  # a stable sort
    return sorted(scored[: final.number], key=lambda one: one.id)


def to_send(
    final: Final, version: str, going_on: Sequence[ChallengeSubmission], there: Iterable[ChallengeSubmission]
) -> Sequence[int]:
    """Return the numbers of those of which the final has no submission that stands; `there` are the team's in the final.

    What went on once goes on, whatever became of scores since. A submission does not stand that the lab could not carry out, nor
    one on which the organiser's programs failed in an earlier version than this.
    """
    tried: dict[int, list[ChallengeSubmission]] = {}
    for one in there:
        tried.setdefault(one.origin, []).append(one)
    new = [one.id for one in going_on if one.id not in tried]
    return [number for number, made in tried.items() if _again(made, version)] + new[: max(0, final.number - len(tried))]


def _again(made: Sequence[ChallengeSubmission], version: str) -> bool:
    stand = (
        one.fault not in (Fault.LAB, Fault.ORGANISER) or (one.fault is Fault.ORGANISER and one.version == version) for one in made
    )
    return not any(stand) and sum(one.fault is Fault.LAB for one in made) < TRIES
