"""What is left of a team's limits: by day in the challenge's zone, in all, at once; what failed is counted apart."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from carrel.core.challenges.board import board
from carrel.core.challenges.limits import left
from carrel.core.challenges.scores import LARGEST, read_scores
from carrel.core.domain.challenge import ChallengeSubmission, Column, Fault, Limits, Phase, SubmissionState
from carrel.core.domain.errors import Conflict, Invalid

pytestmark = pytest.mark.quick

BERLIN = "Europe/Berlin"
PHASE = Phase(name="one", begin=0, end=4e9, split="public", limits=Limits(per_day=2, total=3, at_once=1, failures_per_day=2))


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()


NOW = at("2026-03-29 12:00")


def sent(when: str, state: SubmissionState = SubmissionState.COMPLETED, fault: Fault | None = None) -> ChallengeSubmission:
    return ChallengeSubmission(challenge="c", phase="one", team="t", snapshot="", made_at=at(when), state=state, fault=fault)


def of(*submissions: ChallengeSubmission) -> tuple[int, int, int, int]:
    found = left(PHASE, submissions, now=NOW, zone=BERLIN)
    return found.today, found.total, found.at_once, found.failures


FAILED = SubmissionState.FAILED


@pytest.mark.parametrize(
    ("submissions", "expected"),
    [
        ([], (2, 3, 1, 2)),
        ([sent("2026-03-29 00:00")], (1, 2, 1, 2)),
        ([sent("2026-03-28 23:59")], (2, 2, 1, 2)),
        ([sent("2026-03-29 11:00", SubmissionState.RUNNING)], (1, 2, 0, 2)),
        ([sent("2026-03-29 11:00", FAILED, Fault.TEAM)], (2, 3, 1, 1)),
        ([sent("2026-03-28 11:00", FAILED, Fault.TEAM)], (2, 3, 1, 2)),
        ([sent("2026-03-29 11:00", FAILED, Fault.ORGANISER)], (2, 3, 1, 1)),
        ([sent("2026-03-29 11:00", FAILED, Fault.LAB)], (2, 3, 1, 2)),
        ([replace(sent("2026-03-29 11:00"), phase="other")], (2, 3, 1, 2)),
    ],
)
def test_what_is_left(submissions: list[ChallengeSubmission], expected: tuple[int, ...]) -> None:
    assert of(*submissions) == expected


def test_a_day_of_23_hours_ends_at_midnight() -> None:
    found = left(PHASE, (), now=NOW, zone=BERLIN)
    assert found.next_day == at("2026-03-30 00:00")
    assert found.next_day - at("2026-03-29 00:00") == 23 * 3600


@pytest.mark.parametrize(
    ("submissions", "words"),
    [
        ([sent("2026-03-28 01:00")] * 3, "3 submissions of the phase"),
        ([sent("2026-03-29 01:00")] * 2, "2 submissions of today"),
        ([sent("2026-03-29 01:00", FAILED, Fault.TEAM)] * 2, "2 submissions failed today"),
        ([sent("2026-03-29 01:00", SubmissionState.PENDING)], "has not ended yet"),
    ],
)
def test_nothing_is_left(submissions: list[ChallengeSubmission], words: str) -> None:
    with pytest.raises(Conflict) as caught:
        left(PHASE, submissions, now=NOW, zone=BERLIN).check()
    assert words in caught.value.message
    assert caught.value.remedy


COLUMNS = (Column(column="a", title="A", precision=2), Column(column="b", title="B", larger=False, precision=1))


def scored(number: int, team: str, a: float, b: float, *, baseline: str = "") -> ChallengeSubmission:
    made = ChallengeSubmission(id=number, challenge="c", phase="one", team=team, baseline=baseline, snapshot="")
    return replace(made, state=SubmissionState.COMPLETED, scores={"a": a, "b": b}, made_at=float(number))


def test_the_best_of_each_team_is_on_the_board() -> None:
    found = board(
        COLUMNS,
        [
            scored(1, "x", 0.5, 1),
            scored(2, "x", 0.7, 9),
            scored(3, "y", 0.7, 2),
            scored(4, "z", 0.7, 2),
            scored(5, "", 0.9, 0, baseline="oracle"),
            replace(scored(6, "x", 1.0, 0), state=SubmissionState.RUNNING),
        ],
    )
    assert [(place.rank, place.team or place.baseline, place.submission, place.entries) for place in found] == [
        (1, "oracle", 5, 1),
        (2, "y", 3, 1),
        (2, "z", 4, 1),  # as good, and later
        (4, "x", 2, 2),
    ]


def test_scores_are_rounded_and_nothing_else_is_read() -> None:
    assert read_scores(b'{"a": 0.123456, "b": -0.01, "labels": [1]}', COLUMNS) == {"a": 0.12, "b": 0.0}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"{}", b"nonsense", b'{"a": 1}', b'{"a": "1", "b": 1}', b'{"a": true, "b": 1}', b'{"a": NaN, "b": 1}'),
        *(b'{"a": 1e999, "b": 1}', b'{"a": 1%s, "b": 1}' % (b"0" * 400), b"[" * 100_000, b'{"a": 1, "b": 1}'.ljust(LARGEST + 1)),
    ],
)
def test_what_is_no_score(data: bytes) -> None:
    with pytest.raises(Invalid):
        read_scores(data, COLUMNS)
