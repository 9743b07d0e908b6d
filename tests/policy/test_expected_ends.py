"""Backfill that goes by what jobs are expected to run for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_labs import NOW, Lab, holding, lab, node, waiting

from carrel.core.domain.expectation import Expected
from carrel.core.domain.reservation import Reservation
from carrel.core.policy.expected_ends import ExpectedEnds

HOUR = 3600


def hour_at_most(owner: str, name: str, limit: float, elapsed: float) -> Expected | None:
    """Jobs of ada take half an hour, and nine in ten of them are over in one; nothing is known of others."""
    return Expected(median=HOUR / 2, low=60.0, high=float(HOUR), of=9) if owner == "ada" else None


def test_what_is_expected_is_filled_in_and_nothing_where_nothing_is_known() -> None:
    expected_ends = ExpectedEnds(hour_at_most)
    assert expected_ends.of_waiting(waiting(1, time=5 * HOUR)).seconds == HOUR
    assert expected_ends.of_waiting(waiting(2, owner="bob", time=5 * HOUR)).seconds == 5 * HOUR
    assert expected_ends.of_waiting(waiting(3, time=60)).seconds == 60


def test_a_guess_that_is_overrun_is_doubled_until_the_walltime() -> None:
    expected_ends = ExpectedEnds(hour_at_most)
    job = replace(holding(1, "n1", "n1-0", owner="ada", left=5 * HOUR), started_at=NOW)
    held = expected_ends.of_holding(job, NOW)
    assert held.over_by == NOW + HOUR
    assert expected_ends.of_holding(job, NOW + 60) == held
    assert expected_ends.overdue(NOW + HOUR - 1) == []
    assert [held.over_by - NOW for held in expected_ends.overdue(NOW + HOUR)] == [2 * HOUR]
    assert [held.over_by - NOW for held in expected_ends.overdue(NOW + 3 * HOUR)] == [4 * HOUR]
    assert [held.over_by - NOW for held in expected_ends.overdue(NOW + 4 * HOUR)] == [5 * HOUR]
    assert expected_ends.overdue(NOW + 6 * HOUR) == []


def test_a_job_that_is_over_is_not_overdue() -> None:
    expected_ends = ExpectedEnds(hour_at_most)
    expected_ends.of_holding(replace(holding(1, "n1", "n1-0", owner="ada", left=5 * HOUR), started_at=NOW), NOW)
    expected_ends.forget(1)
    assert expected_ends.overdue(NOW + 9 * HOUR) == []


@pytest.mark.parametrize(("expected", "started"), [(None, []), (HOUR, [2]), (HOUR + 1, [])])
def test_who_should_be_over_in_time_starts_before_a_promise(expected: int | None, started: list[int]) -> None:
    busy = [holding(9, "n1", "n1-0", left=HOUR)]
    waits = [waiting(1, 2, ago=9), waiting(2, 1, ago=8, time=5 * HOUR, expected=expected)]
    assert [start.job_id for start in Lab(lab([node("n1", "h200", "h200")], waits, busy)).place()] == started


def test_a_promise_goes_by_when_those_who_run_should_be_over() -> None:
    busy = [replace(holding(9, "n1", "n1-0", left=5 * HOUR), due=NOW + HOUR)]
    found = Lab(lab([node("n1", "h200")], [waiting(1, 1)], busy))
    found.place()
    assert [promise.at for promise in found.placer.promises] == [NOW + HOUR]


def test_a_window_goes_by_the_walltime_whatever_is_expected() -> None:
    window = Reservation(name="repair", begin=NOW + 2 * HOUR, end=NOW + 3 * HOUR)
    waits = [waiting(1, 1, time=5 * HOUR, expected=60), waiting(2, 1, ago=-1, time=2 * HOUR)]
    found = Lab(lab([node("n1", "h200", "h200")], waits, reservations=[window]))
    assert [start.job_id for start in found.place()] == [2]
