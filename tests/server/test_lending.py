"""Which devices placement leaves alone because of cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel.core.domain.errors import Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.placement import UNKNOWN_STATE, TaskState
from carrel.core.domain.units import GIB
from carrel.lab.server.home import LabHome
from carrel.lab.server.lending import broker_config, charges_of, kept_for_cells, read_faults, state_of
from carrel.lab.server.settings import read_settings
from carrel.node.broker.config import BrokerConfig

pytestmark = pytest.mark.quick


def status(**parts: Any) -> dict[str, Any]:
    devices = [{"uuid": name, "withheld": None} for name in ("a", "b", "c")]
    host = {"limit": None, "left": None, "disk": None}
    return {"devices": devices, "tenants": [], "leases": [], "queue": [], "charges": [], "host": host, **parts}


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


def test_a_device_whose_states_move_over_the_bus_is_not_kept_for_cells_that_may_come() -> None:
    tenants = [{"role": "kernel", "last_used": 99.0, "home": ["a"], "way": "bus"}]
    assert kept(tenants=tenants) == set()
    assert kept(tenants=[*tenants, {"role": "kernel", "last_used": 99.0, "home": ["a"], "way": "driver"}]) == {"a"}


def test_what_sessions_are_charged_is_read() -> None:
    rows = [{"job": 7, "attempt": 1, "owner": "ada", "seconds": 2.5}, {"job": 8, "attempt": 2, "owner": "bob", "seconds": 0}]
    assert charges_of(status(charges=rows)) == {(7, 1): 2.5, (8, 2): 0.0}
    assert charges_of(status()) == {}


def test_faults_are_read_or_refused() -> None:
    assert read_faults("") == {}
    assert read_faults("lost=0.5, lock_timeout=0.1") == {"lost": 0.5, "lock_timeout": 0.1}
    with pytest.raises(Invalid, match="no share"):
        read_faults("lost=often")


def test_a_task_is_placed_where_the_states_in_its_way_have_room_on_the_disk() -> None:
    def left(*, disk: dict[str, int] | None = None, **host: Any) -> int | None:
        host["disk"] = disk
        return state_of(status(host=host), now=100.0).host_left

    assert left(limit=None, left=None) is None
    assert left(limit=8, left=3, disk=None) == 3
    assert left(limit=8, left=3, disk={"limit": 64, "left": 44}) == 44
    assert left(limit=8, left=3, disk={"limit": 64, "left": 2}) == 3, "no state lies half here, half there"


def test_which_tasks_states_can_leave_and_what_they_take_of_host_memory() -> None:
    def task(state: str = "resident", **about: Any) -> TaskState:
        row = {"role": "runner", "job": 7, "id": "t", "home": ["a"], "state": state, "bytes": 6 * GIB, "way": "bus"}
        tenant = {**row, "suspendable": True, "failures": 0, **about}
        found = state_of(status(tenants=[tenant], host={"left": 8 * GIB, "disk": None}), now=100.0)
        assert (found.states, found.has_mover, found.host_left) == ((), True, 8 * GIB)
        return found.tasks[7]

    assert task() == TaskState(bytes=6 * GIB)
    assert task(bytes=6 * GIB + 1) == TaskState(bytes=6 * GIB + 1024**2), "whole MiB"
    assert task(state="none") == UNKNOWN_STATE
    assert task(suspendable=False, stays="JAX").stays == "JAX"
    assert task(bytes=9 * GIB).stays == "its GPU state takes 9G, and host memory has room for 8G more"
    assert task(failures=6).stays == "moving its GPU state to host memory has failed 6 times"
    assert task(failures=5).stays == "", "its library could not move it three times, and the driver is still tried"
    assert task(state="suspended", failures=6) == TaskState(), "bringing it back failed"
    assert task(state="suspended", bytes=9 * GIB) == TaskState(), "it is there already"


def test_the_broker_is_told_how_much_memory_and_disk_states_may_take(tmp_path: Path) -> None:
    def told(**options: Any) -> BrokerConfig:
        settings = read_settings(tmp_path / "none", {}, options)
        return broker_config(LabHome(tmp_path), settings, Node(name="here", cpus=1, memory=64 * GIB))

    default = told()
    assert (default.rules.host_memory, default.host_memory_ready, default.rules.state_disk) == (32 * GIB, 8 * GIB, 0)
    given = told(host_memory="8G", host_memory_ready=0, state_disk="64G", state_directory="/nvme/states")
    assert (given.rules.host_memory, given.host_memory_ready, given.rules.state_disk) == (8 * GIB, 0, 64 * GIB)
    assert given.state_directory == "/nvme/states"
