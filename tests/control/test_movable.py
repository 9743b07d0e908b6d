"""Which tasks are suspended since the broker can move their state, and which are requeued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from scheduled import Scheduled, job, machines, rules, settings

from carrel.core.control.movable import Movable
from carrel.core.control.queue import Queue
from carrel.core.domain.job import JobState, Preemption
from carrel.core.domain.launch import Resumed
from carrel.core.domain.node import Device, Node, NodePart
from carrel.core.domain.placement import UNKNOWN_STATE, GpuState, Snapshot, TaskState, Waiting
from carrel.core.domain.qos import JobKind, Lends, PreemptMode, QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.preempt import PATIENCE

GIB = 1024**3
NOW = 1000.0
QOS = {
    "desk": QoS(name="desk", preempts=frozenset({"rack", "alone"})),
    "rack": QoS(name="rack", preempt_mode=PreemptMode.SUSPEND),
    "alone": QoS(name="alone", preempt_mode=PreemptMode.SUSPEND, lends=Lends.NOBODY),
}
GPUS = tuple(Device(uuid=f"GPU-{number}", index=number, type="h200", name="H200", memory=141 * GIB) for number in (1, 2))
NODE = Node(name="n1", cpus=64, memory=512 * GIB, devices=GPUS)
WAY = Preemption(mode=PreemptMode.SUSPEND, by=9, qos="desk", at=NOW, grace=60)
SAID = {1: TaskState(bytes=6 * GIB), 2: TaskState(bytes=4 * GIB)}


class Lab:
    """Two GPUs, on each of which a task computes, and a broker."""

    def __init__(self, qos: str = "rack", tasks: Mapping[int, TaskState] = SAID) -> None:
        self.queue = Queue(grace=30)
        for number in (1, 2):
            self.put(number, qos)
        self.said = GpuState(has_mover=True, tasks=tasks)
        self.movable = Movable(self.queue, lambda: self.said)

    def put(self, number: int, qos: str = "rack", preemption: Preemption | None = None) -> None:
        fields = {"state": JobState.RUNNING, "attempt": 1, "node": "n1", "devices": (f"GPU-{number}",), "started_at": 1.0}
        self.queue.put(job(number, qos=qos, time=86400, preemption=preemption, **fields), now=NOW)

    def preempts(self, now: float = NOW, *, gpus: int = 1, parent: int | None = None) -> dict[int, str]:
        taker = Waiting(id=9, owner="bob", qos="desk", resources=Resources(gpus=gpus, time=600), submitted_at=NOW)
        picture = Snapshot(nodes=[NODE], qos=QOS, waiting=[taker], holding=self.queue.all_held)
        return {one.job_id: one.mode.value for one in self.movable.decide(picture, taker, now, parent=parent)}


def test_a_task_whose_state_can_be_moved_is_suspended() -> None:
    assert Lab().preempts(gpus=2) == {1: "suspend", 2: "suspend"}
    assert Lab().preempts(gpus=2, parent=1) == {}, "a parent is not moved for its child"


@pytest.mark.parametrize("said", [{}, {1: UNKNOWN_STATE}, {1: TaskState(stays="JAX")}])
def test_what_stays_is_requeued_once_that_is_certain(said: dict[int, TaskState]) -> None:
    lab = Lab(tasks={2: TaskState(stays="it computes"), **said})
    assert lab.preempts(gpus=2) == {}
    assert lab.movable.again_at(NOW) == NOW + PATIENCE
    assert lab.preempts(NOW + PATIENCE - 1, gpus=2) == {}
    assert lab.preempts(NOW + PATIENCE, gpus=2) == {1: "requeue", 2: "requeue"}
    assert lab.movable.stays == {1: said.get(1, UNKNOWN_STATE).stays, 2: "it computes"}


def test_a_broker_that_speaks_late_is_believed() -> None:
    """A server that was started anew has not heard the broker yet."""
    lab = Lab(tasks={})
    assert lab.preempts(gpus=2) == {}
    lab.said = replace(lab.said, tasks=SAID)
    assert lab.preempts(NOW + PATIENCE, gpus=2) == {1: "suspend", 2: "suspend"}
    lab.said = replace(lab.said, tasks={})
    assert lab.preempts(NOW + 2 * PATIENCE, gpus=2) == {}, "it is asked anew"


def test_what_nobody_asks_for_is_asked_anew_the_next_time() -> None:
    lab = Lab(tasks={})
    assert lab.preempts() == {}
    assert lab.movable.again_at(NOW) == NOW + PATIENCE
    assert lab.movable.again_at(NOW + 1) is None
    assert lab.preempts(NOW + 2 * PATIENCE) == {}


def test_no_more_is_suspended_than_host_memory_has_room_for() -> None:
    lab = Lab()
    lab.said = replace(lab.said, host_left=9 * GIB)
    assert lab.preempts(gpus=2) == {1: "requeue", 2: "suspend"}
    assert lab.movable.stays == {1: "host memory has no room for the GPU state of all jobs that would be stopped"}
    lab.said = replace(lab.said, host_left=10 * GIB)
    assert lab.preempts(gpus=2) == {1: "suspend", 2: "suspend"}


def test_where_nothing_moves_states_and_what_lends_to_nobody_is_requeued_at_once() -> None:
    lab = Lab()
    lab.said = GpuState()
    assert lab.preempts(gpus=2) == {1: "requeue", 2: "requeue"}
    assert lab.movable.stays == {}
    alone = Lab("alone")
    assert alone.preempts() == {2: "requeue"} or alone.preempts() == {1: "requeue"}
    assert alone.movable.stays[1] == 'work of the class of service "alone" lends to nobody'


@pytest.mark.parametrize(
    ("about", "mover", "why"),
    [
        ({"state": JobState.CONFIGURING}, True, "it is still being prepared"),
        ({"kind": JobKind.SESSION}, True, "it is a session"),
        ({"others": (NodePart(node="n2", devices=()),)}, True, "its processes are on several nodes"),
        ({}, False, "no broker on its node moves GPU state"),
        ({}, True, "its memory is needed, too"),
        ({"devices": ()}, False, "its memory is needed, too"),
    ],
)
def test_an_owner_reads_why_a_job_is_requeued_that_its_class_would_suspend(about: dict[str, Any], mover: bool, why: str) -> None:
    lab = Lab()
    lab.said = replace(lab.said, has_mover=mover)
    assert lab.movable.why_requeued(replace(lab.queue.job(1), **about)) == why


def test_a_task_that_was_to_be_suspended_and_stays_is_stuck_once_that_is_certain() -> None:
    lab = Lab(tasks={1: TaskState(stays="JAX"), 2: TaskState()})
    assert lab.movable.stuck(NOW) == []
    lab.put(1, preemption=WAY)
    lab.put(2, preemption=WAY)
    assert lab.movable.stuck(NOW) == []
    assert lab.movable.again_at(NOW) == NOW + PATIENCE
    assert lab.movable.stuck(NOW + PATIENCE) == [1]
    lab.put(1, preemption=replace(WAY, mode=PreemptMode.REQUEUE))
    assert lab.movable.stuck(NOW + 2 * PATIENCE) == []


def test_a_task_that_was_stopped_although_it_was_to_run_on_is_told_again() -> None:
    """The server that took its word back was killed before it had told the engine."""
    found = settings(rules(qos=QOS, default_qos="rack", session_qos="rack"), tells=False)
    lab = Scheduled(machines(1, {1: 100.0}), found)
    engine = lab.engine
    lab.cycle(0.0, job(1, qos="rack", time=1000))
    engine.preempt(1, 1, WAY)
    lab.cycle(0.0)
    assert engine.next_end == 0.0, "it goes on"
    (resumed,) = engine.ended()
    assert isinstance(resumed.entries[-1].record, Resumed)
