"""Contexts that are in the way leave by the driver's checkpoint, and are back before their process may use the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bus_node import MIB, SIZE, Node, State
from kernels import eventually, leases_of

from carrel.core.domain.lease import LendingRules
from support.fake_driver import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="library and fake driver are compiled from C")

#: A device has 100 MiB, a context 8, and 2 are kept free: the large state has room beside two contexts and not beside three.
LARGE, SMALL = 80 * MIB, 60 * MIB


def _checkpoints(node: Node) -> list[str]:
    """Whose context the driver has taken off the device, in this order."""
    lines = [line for line in node.broker.log.read_text().splitlines() if " checkpoint " in line and ": done" in line]
    return [line.split(" checkpoint ")[1].split(":")[0] for line in lines]


def test_the_context_that_is_idle_longest_leaves_and_comes_back(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes()
    large = State(node.program(), size=LARGE, seed=1)
    small = [State(node.program(), size=SMALL, seed=seed) for seed in (2, 3)]
    assert _checkpoints(node) == []
    large.same()
    gone = node.tenant(small[0].program.process.pid)
    assert _checkpoints(node) == [gone["id"]]
    assert {row["id"]: row["context"] for row in node.broker.status()["tenants"] if row["context"] != "device"} == {
        gone["id"]: "away"
    }
    assert gone["context_bytes"] > 0
    for state in small:
        state.same()
    assert len(_checkpoints(node)) == 1
    assert {row["way"] for row in node.broker.status()["tenants"]} == {"bus"}
    eventually(lambda: not leases_of(node.broker))


def test_one_that_the_driver_would_kill_keeps_its_context(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes()
    large = State(node.program(), size=LARGE, seed=1)
    fragile = node.kernel(blockers=["JAX"])
    lease = fragile.acquire()
    node.take(fragile, lease, SMALL)
    fragile.release(lease, blockers=["JAX"])
    small = State(node.program(), size=SMALL, seed=3)
    large.same()
    assert _checkpoints(node) == [node.tenant(small.program.process.pid)["id"]]
    small.same()
    fragile.acquire()
    fragile.tell("!check")
    assert fragile.expect("check")["same"]


@pytest.mark.parametrize("call", ["cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore"])
def test_a_broker_that_is_killed_on_the_way(bus_nodes: Callable[..., Node], call: str) -> None:
    node = bus_nodes()
    large = State(node.program(), size=LARGE, seed=1)
    first = State(node.program(), size=SMALL, seed=2)
    State(node.program(), size=SMALL, seed=3)
    node.driver.inject(call, "hang", 1.0, pid=first.program.process.pid)
    waiting = [large]
    if call.endswith("Restore"):
        large.same()
        waiting = [first]
    begun = [(one, one.program.begin("check", at=one.at, size=one.size, seed=one.seed)) for one in waiting]
    eventually(lambda: not node.driver.pending())
    node.broker.restart()
    for one, number in begun:
        assert one.program.finish(number) == {"result": 0, "same": True}
    first.same()


def _whose_home_is_in_use(node: Node) -> State:
    """Of three states on two devices the one in host memory: on one a program computes without an end, the other's is idle."""
    first, _idle, busy = (State(node.program(), seed=seed) for seed in (1, 2, 3))
    assert node.state(first.program) == "suspended"
    busy.computes()
    return first


def test_a_state_comes_back_on_another_device_where_its_context_has_gone_before(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(gpus=2, rules=LendingRules(margin=2 * MIB, time_slice=0))
    first = _whose_home_is_in_use(node)
    tenant = node.tenant(first.program.process.pid)
    first.same()
    assert _checkpoints(node) == [tenant["id"]]
    moved = node.tenant(first.program.process.pid)
    assert moved["home"] != tenant["home"]
    assert (moved["state"], moved["way"], moved["context"]) == ("resident", "bus", "device")
    assert first.program.good("device")["uuid"] == moved["home"][0]
    assert moved["bytes"] == SIZE
    first.same()


@pytest.mark.parametrize("call", ["cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuMemcpyHtoDAsync"])
def test_a_broker_that_is_killed_while_a_state_comes_back_on_another_device(bus_nodes: Callable[..., Node], call: str) -> None:
    """Before its context has left, while the driver brings that to the other device, and while the state follows."""
    node = bus_nodes(gpus=2, rules=LendingRules(margin=2 * MIB, time_slice=0))
    first = _whose_home_is_in_use(node)
    home = node.tenant(first.program.process.pid)["home"]
    node.driver.inject(call, "hang", 1.0, pid=first.program.process.pid)
    number = first.program.begin("check", at=first.at, size=first.size, seed=first.seed)
    eventually(lambda: not node.driver.pending())
    node.broker.restart()
    assert first.program.finish(number) == {"result": 0, "same": True}
    there = [first.program.good("device")["uuid"]]
    assert node.tenant(first.program.process.pid)["home"] == there != home


def test_where_the_driver_refuses_another_device_a_state_waits_for_its_home(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(gpus=2, rules=LendingRules(margin=2 * MIB, time_slice=0))
    first, _idle, busy = (State(node.program(), seed=seed) for seed in (1, 2, 3))
    home = node.tenant(first.program.process.pid)["home"]
    busy.computes()
    node.driver.inject("cuCheckpointProcessRestore", "refuse_map", pid=first.program.process.pid)
    number = first.program.begin("check", at=first.at, size=first.size, seed=first.seed)
    eventually(lambda: not node.driver.pending() and node.tenant(first.program.process.pid)["home"] == home)
    busy.program.kill()
    assert first.program.finish(number) == {"result": 0, "same": True}
    assert [first.program.good("device")["uuid"]] == home
