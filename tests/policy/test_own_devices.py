"""Jobs whose GPU state comes back to certain devices only go on there, or wait."""

from __future__ import annotations

from carrel.core.domain.placement import Start
from carrel.core.policy.own_devices import on_own_devices

TYPES = {"a": "large", "b": "large", "c": "small"}


def placed(*starts: tuple[int, str], own: dict[int, str], taken: str = "") -> tuple[dict[int, str], set[int]]:
    """Devices are letters."""
    given = [Start(job_id=job_id, node="n", devices=tuple(devices)) for job_id, devices in starts]
    found, waits = on_own_devices(given, {job_id: tuple(devices) for job_id, devices in own.items()}, set(taken), TYPES)
    return {start.job_id: "".join(start.devices) for start in found}, set(waits)


def test_a_job_goes_on_on_its_own_device_where_that_is_free() -> None:
    assert placed((1, "a"), own={1: "b"}) == ({1: "b"}, set())
    assert placed((1, "ba"), own={1: "ab"}) == ({1: "ab"}, set())


def test_two_that_start_change_devices() -> None:
    assert placed((1, "a"), (2, "b"), own={1: "b"}) == ({1: "b", 2: "a"}, set())
    assert placed((2, "b"), (1, "a"), own={1: "b"}) == ({1: "b", 2: "a"}, set())
    assert placed((1, "a"), (2, "b"), own={1: "b", 2: "a"}) == ({1: "b", 2: "a"}, set())


def test_it_waits_where_another_has_its_device() -> None:
    assert placed((1, "a"), (2, "c"), own={1: "b"}, taken="b") == ({2: "c"}, {1})


def test_the_first_of_two_with_one_device_has_it() -> None:
    assert placed((1, "a"), (2, "b"), own={1: "b", 2: "b"}) == ({1: "b"}, {2})
    assert placed((2, "a"), (1, "b"), own={1: "b", 2: "b"}) == ({2: "b"}, {1})


def test_it_waits_where_the_other_would_get_a_device_of_another_type() -> None:
    assert placed((1, "c"), (2, "b"), own={1: "b"}) == ({2: "b"}, {1})
