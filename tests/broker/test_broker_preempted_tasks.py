"""Tasks that are preempted by suspension: a real broker, and programs with the residency library.

Their states do not fit beside each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bus_node import MIB, SIZE, Node, State
from kernels import FakeKernel, eventually, leases_of

from carrel.core.domain.lease import LendingRules
from support.fake_driver import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="library and fake driver are compiled from C")

RULES = LendingRules(margin=2 * MIB, task_turn=0.0, task_share=0.0, least_room=0.01, unknown_room=0.1)


class Task:
    """What acts as a task's runner, and a program of the task with state."""

    def __init__(self, node: Node, *, seed: int) -> None:
        self.node = node
        self.job = node.task()
        self.runner: FakeKernel = node.kernel(self.job, role="runner", library=False)
        self.lease = self.runner.acquire(devices=[node.driver.uuids[0]], lends=True)
        assert self.lease["op"] == "granted"
        self.state = State(node.program(self.job), seed=seed)
        eventually(lambda: self.row["bytes"] >= SIZE)

    @property
    def row(self) -> dict[str, Any]:
        return self.node.tenant(self.runner.pid)

    def say(self, op: str) -> None:
        self.runner.say(op, lease=self.lease["lease"])

    def is_preempted(self) -> None:
        self.say("set_aside")
        assert self.runner.expect("paused")["aside"]

    def resumes(self) -> None:
        self.say("go_on")
        assert self.runner.expect("resumed")["lease"] == self.lease["lease"]


def two_tasks(node: Node) -> tuple[Task, Task]:
    """The second one has preempted the first."""
    first = Task(node, seed=1)
    first.is_preempted()
    return first, Task(node, seed=2)


def test_two_tasks_that_do_not_fit_beside_each_other_change_places(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    first, second = two_tasks(node)
    assert first.row["state"] == "suspended"
    for _ in range(3):
        for waits, goes in ((second, first), (first, second)):
            waits.is_preempted()
            goes.resumes()
            goes.state.same()
            assert (goes.row["state"], waits.row["state"]) == ("resident", "suspended")
    assert {row["state"] for row in leases_of(node.broker)} == {"active", "paused"}


def test_a_state_stays_where_it_is_while_nobody_needs_the_room(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    task = Task(node, seed=1)
    task.is_preempted()
    assert task.row["state"] == "resident"
    begun = task.state.program.begin("check", at=task.state.at, size=SIZE, seed=1)
    assert node.broker.status()["queue"] == [], "it does not ask for its devices by itself"
    task.resumes()
    assert task.state.program.finish(begun) == {"result": 0, "same": True}


def test_a_cell_has_the_device_while_a_task_is_preempted(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    task = Task(node, seed=1)
    task.is_preempted()
    cell = State(node.program(), seed=3)
    cell.same()
    assert task.row["state"] == "suspended"
    task.resumes()
    task.state.same()
    cell.same()


def test_a_task_is_preempted_while_a_cell_has_the_device(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    task = Task(node, seed=1)
    cell = State(node.program(), seed=3)
    cell.computes()
    # The cell had the device for its state as well: the task may have been paused twice by now.
    both = [("kernel", "active"), ("runner", "paused")]
    eventually(lambda: sorted((row["role"], row["state"]) for row in leases_of(node.broker)) == both)
    assert not task.runner.expect("paused")["aside"]
    task.say("set_aside")
    while not task.runner.expect("paused")["aside"]:
        continue
    cell.program.kill()
    eventually(lambda: [(row["role"], row["state"]) for row in leases_of(node.broker)] == [("runner", "paused")])
    assert node.broker.status()["queue"] == []
    task.resumes()
    task.state.same()


def test_a_task_that_resumes_before_it_was_paused(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    task = Task(node, seed=1)
    for _ in range(5):
        task.say("set_aside")
        task.resumes()
        task.state.same()


def test_a_task_that_ends_while_it_is_preempted_leaves_nothing(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    first, second = two_tasks(node)
    first.state.program.close()
    first.runner.kill()
    eventually(lambda: [row["pid"] for row in node.broker.status()["tenants"]] == [second.runner.pid])
    second.state.same()


def test_a_task_that_the_driver_moves_leaves_when_it_is_preempted(bus_nodes: Callable[..., Node]) -> None:
    node = bus_nodes(rules=RULES)
    job = node.task()
    runner = node.kernel(job, role="runner", library=False)
    lease = runner.acquire(devices=[node.driver.uuids[0]], lends=True)
    node.take(runner, lease, SIZE)
    eventually(lambda: node.tenant(runner.pid)["bytes"] >= SIZE)
    assert node.tenant(runner.pid)["way"] == "driver"
    runner.say("set_aside", lease=lease["lease"])
    assert runner.expect("paused")["aside"]
    assert node.tenant(runner.pid)["state"] == "suspended", "nothing but its move stops it"
    runner.say("go_on", lease=lease["lease"])
    runner.expect("resumed")
    runner.tell("!check")
    assert runner.expect("check")["same"]


#: Calls in which a change of places can be caught: stopping, copying out, giving up memory; and the way back.
_CALLS = ("cuCtxSynchronize", "cuMemcpyDtoHAsync", "cuMemUnmap", "cuMemCreate", "cuMemcpyHtoDAsync")


@pytest.mark.chaos
@pytest.mark.parametrize("call", _CALLS)
def test_a_broker_that_is_killed_while_tasks_change_places_loses_nothing(bus_nodes: Callable[..., Node], call: str) -> None:
    node = bus_nodes(rules=RULES)
    first, second = two_tasks(node)
    mover = first if call in _CALLS[3:] else second
    node.driver.inject(call, "hang", 1.0, pid=mover.state.program.process.pid)
    second.say("set_aside")
    first.say("go_on")
    # What the broker has read it remembers; a real runner would say the rest again, and this one does not.
    asides = {first.job.id: False, second.job.id: True}
    eventually(lambda: {row["job"]: row["aside"] for row in leases_of(node.broker)} == asides)
    eventually(lambda: not node.driver.pending())
    node.broker.restart()
    assert first.runner.expect("resumed")["lease"] == first.lease["lease"]
    first.state.same()
    first.is_preempted()
    second.resumes()
    second.state.same()
