"""The broker and the residency library: real processes, a fake driver, memory that really leaves and comes back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from bus_node import MIB, SIZE, Node, Program, State
from kernels import eventually, leases_of

from carrel.core.domain.lease import LendingRules
from support.fake_driver import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="library and fake driver are compiled from C")


@pytest.mark.gate
def test_two_programs_exchange_a_device_that_holds_one(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes()
    first = State(node.program(), seed=1)
    second = State(node.program(), seed=2)
    for _ in range(3):
        for one, other in ((first, second), (second, first)):
            one.same()
            assert node.state(other.program) == "suspended"
    eventually(lambda: not leases_of(node.broker))


def test_a_program_that_uses_the_calls_for_virtual_memory_moves_as_others_do(bus_nodes: Callable[..., Node]) -> None:
    """As JAX does it, whose processes the driver cannot move."""
    node = bus_nodes()
    program = node.program()
    program.good("init")
    program.good("context")
    at = program.good("reserve", size=SIZE)["at"]
    handle = program.good("create", size=SIZE)["handle"]
    program.good("map", at=at, size=SIZE, handle=handle)
    program.good("fill", at=at, size=SIZE, seed=3)
    other = State(node.program())
    assert node.state(program) == "suspended"
    assert program.order("check", at=at, size=SIZE, seed=3) == {"result": 0, "same": True}
    other.same()


def test_a_kernel_whose_libraries_the_driver_cannot_move_goes_over_the_bus(bus_nodes: Callable[..., Node]) -> None:
    """Its hook names what it has imported whenever it is asked; to the library in it that is no hindrance."""
    node = bus_nodes()
    first = node.kernel(blockers=["JAX"])
    lease = first.acquire()
    node.take(first, lease, SIZE)
    first.release(lease, blockers=["JAX"])
    assert eventually(lambda: leases_of(node.broker) == [])
    other = State(node.program())
    assert eventually(lambda: node.tenant(first.pid)["state"] == "suspended")
    other.same()
    first.acquire()
    first.tell("!check")
    assert first.expect("check")["same"]
    assert [message["op"] for message in first.heard].count("prepare") == 1


def test_a_session_of_a_cluster_that_runs_as_its_owner_goes_over_the_bus(bus_nodes: Callable[..., Node], tmp_path: Path) -> None:
    """Its files are where its owner has them, which the library tells the broker."""
    node = bus_nodes(shared=True)
    spool = Path(node.broker.config.spool)
    states = []
    for number in (1, 2):
        job = node.session(shares=(0,))
        (spool / str(number)).rename(tmp_path / str(number))
        states.append(State(node.program(job, CARREL_ATTEMPT_DIR=str(tmp_path / str(number) / "1")), seed=number))
    for _ in range(2):
        for state in states:
            state.same()
    assert node.tenant(states[1].program.process.pid)["owner"] == f"uid:{os.getuid()}"
    assert node.tenant(states[1].program.process.pid)["way"] == "bus"


def test_a_cell_and_what_computes_in_its_process_have_one_lease(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes()
    kernel = node.kernel()
    lease = kernel.acquire()
    node.take(kernel, lease, SIZE)
    assert [row["id"] for row in leases_of(node.broker)] == [lease["lease"]]
    kernel.release(lease)
    eventually(lambda: not leases_of(node.broker))
    # Between cells a thread computes, and the next cell finds that the process has a lease already.
    kernel.tell("!check")
    assert kernel.expect("check")["same"]
    assert node.tenant(kernel.pid)["state"] == "resident"
    eventually(lambda: not leases_of(node.broker))
    assert len(node.broker.status()["tenants"]) == 1


def test_a_child_of_a_kernel_waits_at_the_gate_and_goes_on(bus_nodes: Callable[..., Node]) -> None:
    """The kernel's cell waits for its child, and uses no GPU meanwhile: the child need not wait for the cell's end."""
    node = bus_nodes()
    job = node.session()
    kernel = node.kernel(job)
    lease = kernel.acquire()
    node.take(kernel, lease, SIZE)
    child = node.program(job)
    state = State(child)
    state.same()
    assert {row["job"] for row in node.broker.status()["tenants"]} == {job.id}
    assert node.tenant(kernel.pid)["state"] == "suspended"
    kernel.tell("!check")
    assert kernel.expect("check")["same"]
    assert node.state(child) == "suspended"


#: Calls of the driver in which a move can be caught: stopping, registering the pool, copying out, giving up memory, and back.
_OUT = ("cuCtxSynchronize", "cuMemHostRegister", "cuMemcpyDtoHAsync", "cuMemUnmap")
_BACK = ("cuMemCreate", "cuMemcpyHtoDAsync")


def _catch(node: Node, first: State, call: str) -> tuple[Program, int]:
    """A second program wants the device; the move of the first one's state, or that of its own, hangs for a while in `call`."""
    program = node.program()
    ahead = call == "cuMemHostRegister"  # as soon as it is idle, or when it has to move
    if ahead:
        node.driver.inject(call, "hang", 1.0, pid=program.process.pid)
    second = State(program, seed=2)  # the first one's state is away
    mover = second if call in _OUT else first
    if not ahead:
        node.driver.inject(call, "hang", 1.0, pid=mover.program.process.pid)
    begun = first.program.begin("check", at=first.at, size=first.size, seed=first.seed)
    eventually(lambda: not node.driver.pending())
    return second.program, begun


@pytest.mark.parametrize("call", [*_OUT, *_BACK])
def test_a_broker_that_is_killed_in_the_middle_of_a_move(bus_nodes: Callable[..., Node], call: str) -> None:
    node = bus_nodes()
    first = State(node.program(), seed=1)
    _second, begun = _catch(node, first, call)
    node.broker.restart()
    assert first.program.finish(begun) == {"result": 0, "same": True}
    eventually(lambda: not leases_of(node.broker))


@pytest.mark.parametrize("call", [*_OUT, *_BACK])
def test_a_process_that_is_killed_in_the_middle_of_a_move(bus_nodes: Callable[..., Node], call: str) -> None:
    node = bus_nodes()
    first = State(node.program(), seed=1)
    second, begun = _catch(node, first, call)
    if call in _OUT:
        second.kill()
        assert first.program.finish(begun) == {"result": 0, "same": True}
    else:
        first.program.kill()
    survivor = first.program if call in _OUT else second
    third = State(node.program(), seed=3)
    third.same()
    (left,) = [row for row in node.broker.status()["tenants"] if row["pid"] == survivor.process.pid]
    assert left["state"] == "suspended"
    assert node.broker.status()["host"]["limit"] != 0


def test_a_program_in_mid_flight_is_stopped_at_the_gate_moved_and_goes_on(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=LendingRules(margin=2 * MIB, time_slice=0.5))
    first = State(node.program(), seed=1)
    first.computes()
    second = State(node.program(), seed=2)
    second.computes()
    for one in (first, second):
        tenant = node.tenant(one.program.process.pid)["id"]
        eventually(lambda name=tenant: all(f"bus {way} {name}: done" in node.broker.log.read_text() for way in ("out", "in")))
    for one in (first, second):
        begun = one.program.begin("check", at=one.at, size=one.size, seed=one.seed)
        assert one.program.finish(begun) == {"result": 0, "same": True}


def test_two_that_fit_change_places_without_a_move(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=LendingRules(margin=2 * MIB, time_slice=0.5, least_room=0.01, unknown_room=0.1))
    first = State(node.program(), size=8 * MIB, seed=1)
    eventually(lambda: not leases_of(node.broker))
    eventually(lambda: node.tenant(first.program.process.pid)["bytes"] < 20 * MIB)
    first.computes()
    second = State(node.program(), size=8 * MIB, seed=2)
    second.same()
    assert node.state(first.program) == "resident"
    assert "bus out" not in node.broker.log.read_text()
    begun = first.program.begin("check", at=first.at, size=first.size, seed=first.seed)
    assert first.program.finish(begun) == {"result": 0, "same": True}


def test_memory_that_cannot_take_part_is_named_before_anybody_waits_for_it(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes()
    first = State(node.program(), seed=1)
    first.program.good("managed", size=4 * MIB)
    eventually(lambda: [row["state"] for row in leases_of(node.broker)] == ["held"])
    about = node.tenant(first.program.process.pid)
    assert (about["suspendable"], about["why_not"]) == (False, "managed memory")
    second = node.program()
    second.begin("init", thread=False)
    waiting = eventually(lambda: node.broker.status()["queue"])
    assert "cannot be moved: managed memory" in waiting[0]["message"]
    first.same()


# ---- tasks: their processes are members of the runner's tenant

_LENDING = LendingRules(margin=2 * MIB, task_turn=0.0, task_share=0.0, least_room=0.01, unknown_room=0.1)


class Task:
    """What acts as a task's runner, and a process of the task."""

    def __init__(self, node: Node, *, size: int = SIZE) -> None:
        self.job = node.task()
        self.runner = node.kernel(self.job, role="runner", library=False)
        self.lease = self.runner.acquire(devices=[node.driver.uuids[0]], lends=True)
        self.state = State(node.program(self.job), size=size)
        eventually(lambda: node.tenant(self.runner.pid)["bytes"] >= size)
        self.state.computes()

    def same(self) -> bool:
        begun = self.state.program.begin("check", at=self.state.at, size=self.state.size, seed=self.state.seed)
        return self.state.program.finish(begun) == {"result": 0, "same": True}


def test_a_task_gives_way_to_a_cell_over_the_bus_and_goes_on(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=_LENDING)
    task = Task(node)
    cell = State(node.program(), seed=2)
    assert task.runner.expect("paused")["lease"] == task.lease["lease"]
    cell.same()
    assert task.runner.expect("resumed")["lease"] == task.lease["lease"]
    assert task.same()
    tenant = node.tenant(task.runner.pid)["id"]
    assert f"bus out {tenant}: done" in node.broker.log.read_text()
    assert len(node.broker.status()["tenants"]) == 2


def test_a_task_with_a_process_that_has_no_library_goes_the_drivers_way(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=_LENDING)
    task = Task(node, size=8 * MIB)
    node.take(task.runner, task.lease, 48 * MIB)  # the runner's own process stands for one without
    eventually(lambda: "no residency library" in node.tenant(task.runner.pid)["not_bus"])
    assert node.tenant(task.runner.pid)["way"] == "driver"
    task.state.program.order("idle")
    cell = node.kernel()
    assert cell.acquire()["op"] == "granted"
