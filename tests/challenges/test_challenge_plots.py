"""The plots of a team's scores: in the order of its submissions, with its best and who is first on the board."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from carrel.core.challenges.board import board
from carrel.core.domain.challenge import Board, ChallengeSubmission, Column, SubmissionState
from carrel.lab.portal.challenge_plots import Course, courses_of

pytestmark = pytest.mark.quick
COLUMNS = (Column(column="a", title="A", precision=2), Column(column="b", title="B", larger=False, precision=0))


def plots(*scores: tuple[str, float, float]) -> Sequence[Course]:
    """Those of the team "ours", where these were scored one after the other."""
    sent = [
        ChallengeSubmission(
            id=number, challenge="c", phase="p", team=team, snapshot="s", state=SubmissionState.COMPLETED, scores={"a": a, "b": b}
        )
        for number, (team, a, b) in enumerate(scores, start=1)
    ]
    found = Board(challenge="c", phase="p", columns=COLUMNS, places=tuple(board(COLUMNS, sent)))
    return courses_of(found, reversed(sent), "ours")


def test_the_best_is_marked_by_the_direction_of_each_column() -> None:
    first, second = plots(("ours", 0.2, 9), ("theirs", 0.9, 7), ("ours", 0.6, 3), ("ours", 0.4, 5))
    assert (first.best, first.submission, first.first, first.count) == ("0.60", 3, "0.90", 3)
    assert (second.best, second.submission, second.first) == ("3", 3, "7")
    assert first.path.count("L") == 2
    assert first.best_path == f"M{first.path[1:].split('L')[1]}h0"


def test_a_single_score_is_a_point_and_none_is_no_plot() -> None:
    (first, _) = plots(("ours", 0.2, 9))
    assert first.first == first.best == "0.20"
    assert not plots(("theirs", 0.9, 7))


def test_another_phase_is_another_plot() -> None:
    (first, _) = plots(("ours", 0.2, 9))
    other = ChallengeSubmission(id=9, challenge="c", phase="final", team="ours", snapshot="s", scores={"a": 1.0, "b": 1.0})
    empty = Board(challenge="c", phase="p", columns=COLUMNS, places=())
    assert first.count == 1
    assert not courses_of(empty, [other], "ours")
