"""The Ladder: what a team is shown of its scores moves only when the score is better by a step.

Blum and Hardt, "The Ladder: A Reliable Leaderboard for Machine Learning Competitions" (ICML 2015, arXiv:1502.04585), algorithm 1:
a loss below the released one by more than a step is released, rounded to the nearest multiple of the step, and else the released
one again. So a team that guesses, and keeps what raised its score by a little, hears nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from carrel.core.domain.challenge import ChallengeSubmission, Column


def ladder(columns: Sequence[Column], step: float, scored: Iterable[ChallengeSubmission]) -> Mapping[int, Mapping[str, float]]:
    """Return the scores that a team is shown of each of its submissions to a phase, in the order in which these came.

    It goes by the first column. The others are those of the submission that was released, so that each is released once.
    All numbers are counted in the last digit that the column shows: the same record gives the same values.
    """
    first, released = columns[0], {}
    best: int | None = None
    seen: dict[int, Mapping[str, float]] = {}
    size = steps_of(first, step)
    for one in scored:
        loss = round(one.scores[first.column] * 10.0**first.precision) * (-1 if first.larger else 1)
        if best is None or loss < best - size:
            best = (2 * loss + size) // (2 * size) * size
            value = best * (-1 if first.larger else 1) / 10.0**first.precision
            released = {**one.scores, first.column: value + 0.0}  # no -0.0
        seen[one.id] = released
    return seen


def steps_of(column: Column, step: float) -> int:
    """The step in units of the last digit that the column shows."""
    return round(step * 10.0**column.precision)
