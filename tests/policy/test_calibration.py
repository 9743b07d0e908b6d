"""Ranges of start times are compared with what happened, and corrected: by examples, and by what must hold for any history."""

from __future__ import annotations

from collections.abc import Iterable
from math import exp, inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.expectation import ENOUGH, Corrections, Coverage
from carrel.core.domain.job import Reason
from carrel.core.domain.placement import Wait
from carrel.core.policy.calibration import NEWEST, Calibration
from support.examples import examples

FAST = settings(max_examples=examples(60), deadline=None)
HOUR = 3600.0
WAITS = st.floats(0, 30 * 24 * HOUR)
#: What the scenarios said, in seconds after the question, and what happened.
STORIES = st.lists(st.tuples(WAITS, WAITS, WAITS, WAITS), max_size=60)


def hold(job_id: int, low: float, middle: float, high: float, corrections: Corrections, now: float = 0.0) -> Wait:
    """What an owner is told."""
    said = corrections.of(low, middle, high)
    return Wait(
        job_id=job_id,
        reason=Reason(code="Resources", message=""),
        position=1,
        estimated_start=now + said[1],
        estimated_range=(now + said[0], now + said[2]),
        foreseen=(now + low, now + middle, now + high),
    )


def live(calibration: Calibration, waits: Iterable[float], *, low: float, middle: float, high: float) -> list[bool]:
    """Everybody is told the same, and starts before the next one asks; whether the ranges held."""
    held = []
    for number, wait in enumerate(waits):
        told = hold(number, low, middle, high, calibration.corrections)
        calibration.told(told, 0.0)
        calibration.started(number, wait)
        held.append(told.estimated_range[0] - 1 <= wait <= told.estimated_range[1] + 1)
    return held


def test_nothing_is_corrected_before_anything_has_started() -> None:
    calibration = Calibration()
    calibration.told(hold(1, 60, 600, 900, calibration.corrections), 0.0)
    assert (calibration.corrections, calibration.coverage) == (Corrections(), Coverage())


def test_starts_before_and_after_and_within_are_counted() -> None:
    calibration = Calibration()
    for number, wait in enumerate((100.0, 1000.0, 1500.0, 9000.0)):
        calibration.told(hold(number, 1000, 1200, 2000, Corrections()), 0.0)
        calibration.started(number, wait)
    found = calibration.coverage
    assert (found.of, found.early, found.late, found.held) == (4, 1, 1, 2)


def test_a_range_that_is_a_few_tenths_of_a_second_off_held() -> None:
    calibration = Calibration()
    calibration.told(hold(1, 1000, 1000, 1000, Corrections()), 0.0)
    calibration.started(1, 1000.9)
    assert calibration.coverage.held == 1


def test_what_a_job_was_told_first_counts() -> None:
    calibration = Calibration()
    calibration.told(hold(1, 10, 20, 30, Corrections()), 0.0)
    calibration.told(hold(1, 4000, 5000, 6000, Corrections()), 0.0)
    calibration.started(1, 5000.0)
    assert calibration.coverage.late == 1


def test_who_was_told_no_range_or_never_started_is_not_counted() -> None:
    calibration = Calibration()
    calibration.told(Wait(job_id=1, reason=Reason(code="Resources", message=""), position=1, estimated_start=5.0), 0.0)
    calibration.told(hold(2, 10, 20, 30, Corrections()), 0.0)
    calibration.forget(2)
    for number in (1, 2, 3):
        calibration.started(number, 100.0)
    assert calibration.coverage == Coverage()


def test_a_start_is_compared_once() -> None:
    calibration = Calibration()
    calibration.told(hold(1, 10, 20, 30, Corrections()), 0.0)
    calibration.started(1, 20.0)
    calibration.started(1, 9000.0)
    assert calibration.coverage == Coverage(of=1)


@pytest.mark.parametrize(("factor", "spread"), [(1.0, 0.3), (3.0, 0.3), (0.3, 0.5), (1.0, 1.5)])
def test_ranges_come_to_hold_in_80_of_100_cases_however_wrong_the_scenarios_are(factor: float, spread: float) -> None:
    random = Random(7)
    waits = [10 * HOUR * factor * exp(random.gauss(0, spread)) for _ in range(1000)]
    held = live(Calibration(), waits, low=9 * HOUR, middle=10 * HOUR, high=12 * HOUR)
    assert 0.75 <= sum(held[200:]) / 800 <= 0.85


def test_the_middle_is_corrected_too() -> None:
    random, calibration = Random(8), Calibration()
    live(calibration, [3 * HOUR * exp(random.gauss(0, 0.2)) for _ in range(300)], low=HOUR, middle=HOUR, high=HOUR)
    assert calibration.corrections.of(HOUR, HOUR, HOUR)[1] == pytest.approx(3 * HOUR, rel=0.1)


def test_ranges_that_are_too_wide_become_narrower() -> None:
    random, calibration = Random(9), Calibration()
    live(calibration, [HOUR * exp(random.gauss(0, 0.1)) for _ in range(300)], low=HOUR / 9, middle=HOUR, high=9 * HOUR)
    low, _, high = calibration.corrections.of(HOUR / 9, HOUR, 9 * HOUR)
    assert HOUR / 2 < low < HOUR < high < 2 * HOUR


def test_what_is_outside_is_where_ranges_are_narrow() -> None:
    """One job of seven starts much earlier than all others, and none much later."""
    random, calibration = Random(12), Calibration()
    waits = [HOUR / 50 if random.random() < 0.15 else HOUR * exp(random.gauss(0, 0.1)) for _ in range(600)]
    held = live(calibration, waits, low=HOUR, middle=HOUR, high=HOUR)
    assert 0.75 <= sum(held[200:]) / 400 <= 0.85
    low, _, high = calibration.corrections.of(HOUR, HOUR, HOUR)
    assert high / low < 3


def test_narrow_ranges_and_wide_ones_hold_alike() -> None:
    """The scenarios of every other job say too much, and those of the rest too little; all are as uncertain."""
    random, calibration, held = Random(13), Calibration(), {True: [], False: []}  # type: Random, Calibration, dict[bool, list[bool]]
    for number in range(2000):
        wait = 30 * HOUR * exp(random.gauss(0, 0.4))
        wide = number % 2 == 0
        low, high = (15 * HOUR, 60 * HOUR) if wide else (27 * HOUR, 33 * HOUR)
        held[wide] += live(calibration, [wait], low=low, middle=30 * HOUR, high=high)
    for one in held.values():
        assert 0.75 <= sum(one[200:]) / len(one[200:]) <= 0.85


def test_ranges_of_a_length_are_known_when_enough_of_them_were_compared() -> None:
    calibration = Calibration()
    live(calibration, [10 * HOUR] * (ENOUGH - 1), low=9 * HOUR, middle=10 * HOUR, high=12 * HOUR)
    assert not calibration.corrections.are_known(20 * HOUR)
    live(calibration, [10 * HOUR], low=9 * HOUR, middle=10 * HOUR, high=12 * HOUR)
    assert calibration.corrections.are_known(20 * HOUR)
    assert not calibration.corrections.are_known(300 * HOUR)


def test_what_changes_for_good_is_learned_anew() -> None:
    random, calibration = Random(10), Calibration()
    live(calibration, [HOUR * exp(random.gauss(0, 0.3)) for _ in range(400)], low=HOUR, middle=HOUR, high=HOUR)
    later = live(calibration, [4 * HOUR * exp(random.gauss(0, 0.3)) for _ in range(900)], low=HOUR, middle=HOUR, high=HOUR)
    assert not any(later[:3])
    assert 0.75 <= sum(later[-500:]) / 500 <= 0.85


def test_one_start_changes_little() -> None:
    calibration = Calibration()
    live(calibration, [100 * HOUR], low=HOUR, middle=HOUR, high=HOUR)
    low, middle, high = calibration.corrections.of(HOUR, HOUR, HOUR)
    assert low == middle == HOUR <= high < 5 * HOUR


def test_short_waits_say_nothing_about_long_ones() -> None:
    random, calibration = Random(11), Calibration()
    live(calibration, [1800 * exp(random.gauss(0, 1)) for _ in range(300)], low=600, middle=600, high=600)
    assert calibration.corrections.of(600, 600, 600)[1] > 1200
    assert calibration.corrections.of(100 * HOUR, 100 * HOUR, 100 * HOUR) == (100 * HOUR,) * 3


@FAST
@given(STORIES)
def test_a_corrected_range_is_in_order_and_finite(stories: list[tuple[float, float, float, float]]) -> None:
    calibration = Calibration()
    for number, (*said, wait) in enumerate(stories):
        low, middle, high = sorted(said)
        corrected = calibration.corrections.of(low, middle, high)
        assert 0 <= corrected[0] <= corrected[1] <= corrected[2] < inf
        calibration.told(hold(number, low, middle, high, calibration.corrections), 0.0)
        calibration.started(number, wait)
        found = calibration.coverage
        assert found.of == min(number + 1, NEWEST)
        assert found.held >= 0


@FAST
@given(STORIES, st.floats(1, 1e9))
def test_only_waits_count_and_not_the_time_of_day(stories: list[tuple[float, float, float, float]], now: float) -> None:
    early, late = Calibration(), Calibration()
    for number, (*said, wait) in enumerate(stories):
        low, middle, high = (round(moment) for moment in sorted(said))
        for calibration, at in ((early, 0.0), (late, float(round(now)))):
            calibration.told(hold(number, low, middle, high, Corrections(), at), at)
            calibration.started(number, at + round(wait))
    assert early.coverage == late.coverage
    for seconds in (60.0, HOUR, 100 * HOUR):
        assert early.corrections.of(*[seconds] * 3) == pytest.approx(late.corrections.of(*[seconds] * 3))


@FAST
@given(STORIES)
def test_what_was_written_down_teaches_the_same_again(stories: list[tuple[float, float, float, float]]) -> None:
    first, again, kept = Calibration(), Calibration(), []
    for number, (one, two, three, wait) in enumerate(stories):
        low, middle, high = sorted((one, two, three))
        first.told(hold(number, low, middle, high, first.corrections), 0.0)
        kept.append(first.started(number, wait))
    waits = first.told(hold(-1, 10.0, 20.0, 30.0, first.corrections), 0.0)
    again.restore([*(one for one in kept if one is not None), *([waits] if waits else [])])
    assert (again.coverage, again.corrections) == (first.coverage, first.corrections)
    for one in (first, again):
        one.started(-1, 1000.0)
    assert (again.coverage, again.corrections) == (first.coverage, first.corrections)
