"""What is left of a team's limits: by day in the challenge's zone, in all, at once; what failed is counted apart."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from carrel.core.challenges.board import board
from carrel.core.challenges.cost import cost_of, taken
from carrel.core.challenges.limits import left, told
from carrel.core.challenges.scores import LARGEST, read_scores
from carrel.core.control.ports import AttemptRow
from carrel.core.domain.challenge import ChallengeSubmission, Column, Fault, Limits, Phase, SubmissionState
from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.job import JobState
from carrel.core.domain.resources import Resources

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
        ([sent("2026-03-29 11:00", SubmissionState.RUNNING)], (1, 2, 0, 1)),
        ([sent("2026-03-29 11:00", FAILED, Fault.TEAM)], (2, 3, 1, 1)),
        ([sent("2026-03-28 11:00", FAILED, Fault.TEAM)], (2, 3, 1, 2)),
        ([sent("2026-03-29 11:00", FAILED, Fault.ORGANISER)], (2, 3, 1, 1)),
        ([sent("2026-03-29 11:00", FAILED, Fault.LAB)], (2, 3, 1, 2)),
        ([replace(sent("2026-03-29 11:00"), phase="other")], (2, 3, 1, 2)),
    ],
)
def test_what_is_left(submissions: list[ChallengeSubmission], expected: tuple[int, ...]) -> None:
    assert of(*submissions) == expected


@pytest.mark.parametrize(
    ("zone", "day", "begins", "hours"),
    [
        ("Europe/Berlin", "2026-10-25", "2026-10-24T22:00", 25),
        ("America/Havana", "2026-11-01", "2026-11-01T04:00", 25),  # its first hour is there twice
        ("Africa/Cairo", "2026-04-24", "2026-04-23T22:00", 23),  # and here its midnight is left out
        ("Pacific/Kiritimati", "2026-01-01", "2025-12-31T10:00", 24),
        ("Pacific/Niue", "2026-01-01", "2026-01-01T11:00", 24),
        ("Pacific/Apia", "2011-12-29", "2011-12-29T10:00", 24),  # the next day is the 31st
    ],
)
def test_days_of_other_zones(zone: str, day: str, begins: str, hours: int) -> None:
    """Each moment belongs to one day, which ends when the next one begins."""
    begin = datetime.fromisoformat(begins + "+00:00").timestamp()
    for seconds in (0, 1800, hours * 3600 - 1):
        assert datetime.fromtimestamp(begin + seconds, ZoneInfo(zone)).date().isoformat() == day
        first = replace(sent("2026-01-01"), made_at=begin)
        found = left(PHASE, [first, replace(first, made_at=begin - 1)], now=begin + seconds, zone=zone)
        assert (found.today, found.next_day) == (1, begin + hours * 3600)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Pacific/Kiritimati", "America/Havana"])
def test_a_refusal_says_when_the_next_day_begins_in_the_challenges_zone(zone: str) -> None:
    found = left(PHASE, [replace(sent("2026-01-01"), made_at=NOW)] * 2, now=NOW, zone=zone)
    with pytest.raises(Conflict) as caught:
        found.check()
    assert caught.value.remedy == f"The next day begins at {told(found.next_day, zone)}."
    assert "00:00 on " in told(found.next_day, zone)


def test_gpu_hours_are_those_of_the_phase_and_of_what_goes_on() -> None:
    phase = replace(PHASE, limits=Limits(gpu_hours=2, at_once=9))
    many = [
        replace(sent("2026-03-01"), gpu_hours=0.25),
        replace(sent("2026-03-29 11:00", FAILED, Fault.TEAM), gpu_hours=0.5),
        replace(sent("2026-03-29 11:00", FAILED, Fault.LAB), gpu_hours=9),
        replace(sent("2026-03-29 11:00", SubmissionState.RUNNING), gpu_hours=1),
    ]
    found = left(phase, many, now=NOW, zone=BERLIN)
    assert found.gpu_hours == 0.25
    found.check(0.25)
    with pytest.raises(Conflict, match=r"may take 0.26 GPU-hours, and 0.25 of the 2"):
        found.check(0.26)


def attempt(state: JobState, started: float | None, ended: float | None, suspended: float = 0.0) -> AttemptRow:
    rest = dict.fromkeys(one.name for one in fields(AttemptRow) if one.default is MISSING and one.default_factory is MISSING)
    said = {"state": state, "started_at": started, "ended_at": ended, "suspended_seconds": suspended}
    return AttemptRow(**{**rest, **said})  # type: ignore[arg-type]


def test_what_commands_computed_costs_and_never_more_than_was_announced() -> None:
    """Preparing, standing still, and what the lab lost cost nothing. Hundredths of an hour are rounded up."""
    attempts = [
        (2, attempt(JobState.PREEMPTED, 0.0, 9000.0)),
        (2, attempt(JobState.NODE_FAIL, 0.0, 9000.0)),
        (2, attempt(JobState.TIMEOUT, 100.0, 1000.0, suspended=100.0)),
        (1, attempt(JobState.COMPLETED, 0.0, 1.0)),
        (1, attempt(JobState.FAILED, None, 500.0)),
        (1, attempt(JobState.FAILED, 500.0, 400.0)),  # clocks of two machines
    ]
    assert taken(attempts, most=9) == 0.45  # 1601 s are 0.4447 h
    assert taken(attempts, most=0.3) == 0.3
    assert cost_of([Resources(gpus=1, nodes=2, cpus=3, time=1800), Resources(gpus=0, cpus=1, time=60)]).gpu_hours == 1.0


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
