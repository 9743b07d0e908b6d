"""Plots of a team's own scores, one after the other, beside who is first. Pure; the template draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carrel.core.domain.challenge import Board, ChallengeSubmission, Column
from carrel.lab.portal.metric_plots import path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The scores of a team in one column of a board."""

    title: str
    #: As SVG has them: the team's scores, the best one, and that of who is first on the board.
    path: str
    best_path: str
    first_path: str
    #: The team's best, as it is shown, its submission, and the score of who is first on the board.
    best: str
    submission: int
    first: str
    count: int


def courses_of(board: Board, sent: Iterable[ChallengeSubmission], team: str) -> Sequence[Course]:
    """Return a plot of each column of the board; of a team without scores in its phase, none."""
    own = sorted((one for one in sent if one.team == team and one.phase == board.phase), key=lambda one: one.id)
    return [
        _course(column, scored, board.places[0].scores[column.column] if board.places else None)
        for column in board.columns
        if (scored := [one for one in own if column.column in one.scores])
    ]


def _course(column: Column, scored: Sequence[ChallengeSubmission], first: float | None) -> Course:
    values, better = [one.scores[column.column] for one in scored], max if column.larger else min
    best = better(values)
    first = best if first is None else first
    low, high, last = min(*values, first), max(*values, first), max(1, len(values) - 1)
    # Submissions are one step apart, so that those of a busy day do not lie on each other.
    path = path_of([*enumerate(values), *([(last, values[-1])] if len(values) == 1 else [])], low, high)
    at = values.index(best)
    return Course(
        title=column.title,
        path=path,
        best_path=f"M{path[1:].split('L')[at]}h0",
        first_path=path_of([(0, first), (last, first)], low, high),
        best=f"{best:.{column.precision}f}",
        submission=scored[at].id,
        first=f"{first:.{column.precision}f}",
        count=len(values),
    )
