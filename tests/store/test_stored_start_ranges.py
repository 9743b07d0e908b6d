"""What is kept of ranges that people saw, on every database that a lab may use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stored import add_jobs, new_job

from carrel.core.control.ports import StartOrder
from carrel.core.domain.expectation import ShownRange
from carrel.core.domain.job import Reason
from carrel.core.policy.calibration import NEWEST
from carrel.lab.store import Store

SHOWN = ShownRange(job_id=1, shown_at=10.0, foreseen=(20.0, 30.0, 50.0), low=15.0, high=60.0)


@pytest.fixture
def store(store: Store) -> Store:
    """Jobs 1 to 3 wait."""
    add_jobs(store, *[new_job()] * 3)
    return store


@pytest.mark.gate
def test_starts_come_in_their_order_and_then_those_who_wait(store: Store) -> None:
    later, sooner = replace(SHOWN, job_id=1, started_at=40.0), replace(SHOWN, job_id=2, started_at=35.0)
    waits = replace(SHOWN, job_id=3)
    store.start_ranges.write([later, waits, sooner], [])
    assert list(store.start_ranges.load()) == [sooner, later, waits]


def test_a_start_is_written_beside_its_range_and_twice_does_no_harm(store: Store) -> None:
    store.start_ranges.write([SHOWN], [])
    started = replace(SHOWN, started_at=40.0)
    for _ in range(2):
        store.start_ranges.write([started], [])
    assert list(store.start_ranges.load()) == [started]


def test_a_job_that_is_over_without_a_start_is_forgotten_and_its_earlier_turn_is_not(store: Store) -> None:
    first, again = replace(SHOWN, started_at=40.0), replace(SHOWN, shown_at=50.0)
    store.start_ranges.write([first, again], [])
    store.start_ranges.write([], [1])
    assert list(store.start_ranges.load()) == [first]


def test_the_newest_starts_are_kept(store: Store) -> None:
    many = [replace(SHOWN, shown_at=float(number), started_at=1000.0 + number) for number in range(NEWEST + 20)]
    store.start_ranges.write([replace(SHOWN, job_id=3), *many[::-1]], [])
    assert list(store.start_ranges.load()) == [*many[20:], replace(SHOWN, job_id=3)]


def test_the_start_that_a_killed_server_did_not_note_is_that_of_the_lease(store: Store) -> None:
    store.start_ranges.write([SHOWN, replace(SHOWN, job_id=2)], [])
    store.jobs.start([StartOrder(job_id=1, node="n1", devices=())], now=42.0)
    assert list(store.start_ranges.load()) == [replace(SHOWN, started_at=42.0), replace(SHOWN, job_id=2)]


def test_what_ended_without_a_lease_while_no_server_ran_is_left_out(store: Store) -> None:
    store.start_ranges.write([SHOWN], [])
    store.jobs.request_cancel(1, by="ada", reason=Reason(code="Cancelled", message=""), now=12.0)
    assert list(store.start_ranges.load()) == []
