"""Who had which device, hour by hour, and how a week is kept from look to look."""

from __future__ import annotations

from collections.abc import Iterator

from carrel.core.control.gpu_use import RecentWeek
from carrel.core.gpu_use import HOUR, WEEK, DeviceHours, HeldFacts, Range

NOW = 1000 * HOUR + 1800


def held(since: float, until: float | None, *devices: str, owner: str = "ada", stopped: float = 0.0) -> HeldFacts:
    return HeldFacts(owner, "physics", devices, since, until, stopped, None)


def seconds(hours: DeviceHours, device: str) -> dict[int, float]:
    """Of Ada, by the hour, counted back from the present one."""
    row = hours.rows[device]
    return {at - len(row) + 1: hour["ada", "physics"] for at, hour in enumerate(row) if hour}


def test_an_interval_is_cut_at_hours_and_at_the_ends_of_the_week() -> None:
    hours = DeviceHours(NOW // HOUR * HOUR - WEEK)
    hours.add(held(NOW - 2 * HOUR, NOW - HOUR, "a", "b"), NOW)
    hours.add(held(NOW - 900, None, "a"), NOW)
    hours.add(held(0.0, NOW - WEEK, "c"), NOW)
    hours.add(held(NOW, NOW - 5, "d"), NOW)
    assert seconds(hours, "a") == {-2: 1800, -1: 1800, 0: 900}
    assert seconds(hours, "b") == {-2: 1800, -1: 1800}
    assert seconds(hours, "c") == {-168: 1800}
    assert "d" not in hours.rows


def test_what_was_stopped_is_spread_over_the_whole() -> None:
    hours = DeviceHours(NOW // HOUR * HOUR - WEEK)
    hours.add(held(NOW - 2 * HOUR, NOW - HOUR, "a", stopped=HOUR / 2), NOW)
    hours.add(held(NOW - 1800, None, "b")._replace(stopped_since=NOW - 900), NOW)
    assert seconds(hours, "a") == {-2: 900, -1: 900}
    assert seconds(hours, "b") == {0: 900}


class Kept:
    """A store that counts what is read of it."""

    def __init__(self) -> None:
        self.facts: list[HeldFacts] = []
        self.read = 0

    def held(self, within: Range) -> Iterator[HeldFacts]:
        for one in self.facts:
            if one.until is None or one.until >= within.begin:
                self.read += 1
                yield one


def test_a_week_is_the_same_whether_it_is_read_at_once_or_goes_on() -> None:
    store, week = Kept(), RecentWeek()
    for look in range(60):
        now = NOW + look * 1900.0
        store.facts += [held(now - 4000, now - 100, "a"), held(now - 500, now - 400, "b", owner="bob")]
        going = held(now - 7000, None, "a", owner="eve")
        store.facts.append(going)
        found = week.at(now, store)  # type: ignore[arg-type]
        assert found.rows == RecentWeek().at(now, store).rows  # type: ignore[arg-type]
        assert week.at(now + 59, store) is found  # type: ignore[arg-type]
        store.facts.remove(going)


def test_what_is_over_for_hours_is_read_once_a_day() -> None:
    store, week = Kept(), RecentWeek()
    store.facts = [held(NOW - 10 * HOUR, NOW - 9 * HOUR, "a")]
    for minutes in (0, 2, 60, 600):
        week.at(NOW + 60 * minutes, store)  # type: ignore[arg-type]
    assert store.read == 1
    store.facts.append(held(NOW - 9 * HOUR, NOW - 8 * HOUR, "a"))  # told late
    assert seconds(week.at(NOW + 25 * HOUR, store), "a") == {-35: 1800, -34: 3600, -33: 1800}  # type: ignore[arg-type]
