"""Wide ranges of start times are told in days of the lab's time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from carrel.core.control.days import days_between
from carrel.core.domain.expectation import is_told_in_days

HOUR, DAY = 3600.0, 24 * 3600.0
#: A Friday.
NOON = datetime(2026, 11, 27, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "low", "high", "told"),
    [
        ("UTC", HOUR, 10 * HOUR, "today"),
        ("UTC", 13 * HOUR, 30 * HOUR, "tomorrow"),
        ("UTC", 0.0, 30 * HOUR, "by tomorrow"),
        ("UTC", HOUR, 4 * DAY, "by Tuesday"),
        ("UTC", 3 * DAY, 3 * DAY + 8 * HOUR, "on Monday"),
        ("UTC", 3 * DAY, 15 * DAY, "not before Monday, by 12 December"),
        ("Asia/Tokyo", HOUR, 10 * HOUR, "by tomorrow"),
        ("America/Los_Angeles", 13 * HOUR, 30 * HOUR, "by tomorrow"),
    ],
    indirect=["zone"],
)
@pytest.mark.usefixtures("zone")
def test_days_are_those_of_the_lab(low: float, high: float, told: str) -> None:
    assert days_between(NOON + low, NOON + high, NOON) == told


@pytest.mark.parametrize(
    ("low", "high", "wide"),
    [(0.0, 5 * HOUR, False), (2 * DAY, 5 * DAY, False), (600.0, 7 * HOUR, True), (DAY, 4 * DAY, True)],
)
def test_a_range_that_is_narrow_or_short_is_told_in_numbers(low: float, high: float, wide: bool) -> None:
    assert is_told_in_days(low, high, known=True) is wide
    assert is_told_in_days(low, high, known=False) is (high - low > 6 * HOUR)
