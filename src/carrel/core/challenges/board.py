"""The board of a challenge: the best submission of each team, by the columns of the challenge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carrel.core.domain.challenge import ChallengeSubmission, Column, Place, SubmissionState


def board(columns: Sequence[Column], submissions: Iterable[ChallengeSubmission]) -> Sequence[Place]:
    """Return the places of those that were scored; `submissions` are all of one phase.

    One that lacks a score has no place: it was sent before the challenge had the column. Of a team the best counts. Of equal
    scores the one that was sent first stands first, with the same rank.
    """
    best: dict[tuple[str, str], ChallengeSubmission] = {}
    entries: dict[tuple[str, str], int] = {}
    for one in submissions:
        if one.state is not SubmissionState.COMPLETED or not all(column.column in one.scores for column in columns):
            continue
        who = (one.team, one.baseline)
        entries[who] = entries.get(who, 0) + 1
        if who not in best or order(columns, one) < order(columns, best[who]):
            best[who] = one
    places: list[Place] = []
    for number, one in enumerate(sorted(best.values(), key=lambda one: order(columns, one)), start=1):
        alike = bool(places) and all(places[-1].scores[c.column] == one.scores[c.column] for c in columns)
        places.append(
            Place(
                rank=places[-1].rank if alike else number,
                team=one.team,
                baseline=one.baseline,
                submission=one.id,
                scores=one.scores,
                made_at=one.made_at,
                entries=entries[one.team, one.baseline],
            )
        )
    return places


def order(columns: Sequence[Column], one: ChallengeSubmission) -> tuple[float, ...]:
    """Return what submissions are sorted by: the best first, of equal ones the one that was sent first."""
    return (*((-1 if column.larger else 1) * one.scores[column.column] for column in columns), one.made_at, one.id)
