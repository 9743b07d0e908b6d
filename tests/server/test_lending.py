"""Which devices placement leaves alone because of cells."""

from __future__ import annotations

from typing import Any

import pytest

from carrel.domain.errors import Invalid
from carrel.server.lending import charges_of, kept_for_cells, read_faults

pytestmark = pytest.mark.quick


def status(**parts: Any) -> dict[str, Any]:
    devices = [{"uuid": name, "withheld": None} for name in ("a", "b", "c")]
    return {"devices": devices, "tenants": [], "leases": [], "queue": [], **parts}


def kept(**parts: Any) -> set[str]:
    return kept_for_cells(status(**parts), now=100.0, linger=60.0)


def test_a_node_without_cells_keeps_nothing() -> None:
    assert kept() == set()


def test_devices_of_cells_are_kept_and_those_of_tasks_are_placements_own() -> None:
    assert kept(leases=[{"role": "kernel", "devices": ["a"]}, {"role": "runner", "devices": ["b"]}]) == {"a"}


def test_a_cell_that_waits_has_its_own_device_kept_or_as_many_as_it_waits_for() -> None:
    assert kept(queue=[{"role": "kernel", "devices": ["b"], "gpus": 1}]) == {"b"}
    assert len(kept(queue=[{"role": "kernel", "devices": [], "gpus": 2}])) == 2
    assert kept(queue=[{"role": "runner", "devices": ["b"], "gpus": 1}]) == set()
    two = [{"role": "kernel", "devices": [], "gpus": 1}] * 2
    assert len(kept(queue=two)) == 2


@pytest.mark.parametrize(("used", "expected"), [(41.0, {"c"}), (39.0, set()), (0.0, set())])
def test_a_device_stays_with_cells_for_a_while(used: float, expected: set[str]) -> None:
    assert kept(tenants=[{"role": "kernel", "last_used": used, "home": ["c"]}]) == expected


def test_what_sessions_are_charged_is_read_and_an_older_broker_says_nothing() -> None:
    rows = [{"job": 7, "attempt": 1, "owner": "ada", "seconds": 2.5}, {"job": 8, "attempt": 2, "owner": "bob", "seconds": 0}]
    assert charges_of(status(charges=rows)) == {(7, 1): 2.5, (8, 2): 0.0}
    assert charges_of(status()) == {}


def test_faults_are_read_or_refused() -> None:
    assert read_faults("") == {}
    assert read_faults("lost=0.5, lock_timeout=0.1") == {"lost": 0.5, "lock_timeout": 0.1}
    with pytest.raises(Invalid, match="no share"):
        read_faults("lost=often")
