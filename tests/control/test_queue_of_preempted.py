"""What placement sees of jobs that give way, are stopped, or go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduled import job

from carrel.core.control.queue import Queue
from carrel.core.domain.job import Job, JobState, Preemption
from carrel.core.domain.node import NodePart
from carrel.core.domain.placement import Holding, Waiting
from carrel.core.domain.qos import JobKind, PreemptMode

WAY = Preemption(mode=PreemptMode.SUSPEND, by=9, qos="desk", at=1000.0, grace=60)
JOB = job(1, qos="batch", cpus=4, time=600, state=JobState.RUNNING, started_at=900.0, attempt=1, node="n1", devices=("SIM-1",))


def held(job: Job, now: float = 1000.0) -> Holding:
    found = Queue().put(job, now=now)
    assert isinstance(found, Holding)
    return found


@pytest.mark.parametrize(
    ("change", "suspendable"),
    [
        ({}, True),
        ({"devices": ()}, True),
        ({"devices": ("GPU-1",)}, False),
        ({"kind": JobKind.SESSION}, False),
        ({"state": JobState.CONFIGURING}, False),
        ({"others": (NodePart(node="n2"),)}, False),
    ],
)
def test_tasks_without_state_on_a_gpu_can_be_stopped(change: dict[str, object], suspendable: bool) -> None:
    assert held(replace(JOB, **change)).suspendable is suspendable  # type: ignore[arg-type]


def test_a_place_is_free_when_its_grace_is_over_at_the_latest() -> None:
    assert (held(JOB).ends_by, held(JOB).leaving) == (1500.0, False)
    leaves = held(replace(JOB, preemption=WAY))
    assert (leaves.ends_by, leaves.leaving, leaves.devices) == (1060.0, True, ("SIM-1",))
    assert held(replace(JOB, preemption=replace(WAY, grace=9000))).ends_by == 1500.0
    assert held(replace(JOB, cancelled_by="ada")).leaving


def test_who_is_stopped_keeps_its_memory_and_the_rest_of_its_walltime() -> None:
    stopped = held(replace(JOB, state=JobState.SUSPENDED, preemption=WAY, suspended_at=1000.0), now=4000.0)
    assert (stopped.suspended, stopped.leaving, stopped.devices) == (True, False, ())
    assert (stopped.resources.gpus, stopped.resources.cpus, stopped.resources.memory) == (0, 0, JOB.resources.memory)
    assert stopped.ends_by == 4500.0
    large = replace(JOB.resources, gpu_type="h200", gpu_memory=2**30)
    stopped = held(replace(JOB, resources=large, state=JobState.SUSPENDED, preemption=WAY, suspended_at=1000.0), now=4000.0)
    assert (stopped.resources.gpus, stopped.resources.gpu_memory) == (0, 0)
    going = held(replace(JOB, state=JobState.SUSPENDED, suspended_at=1000.0, suspended_seconds=50.0), now=4000.0)
    assert (going.suspended, going.devices, going.resources, going.ends_by) == (False, ("SIM-1",), JOB.resources, 4550.0)
    assert not going.preemptible
    assert held(replace(JOB, suspended_seconds=50.0)).ends_by == 1550.0
    assert held(replace(JOB, node="slurm:gpu", suspended_seconds=50.0)).ends_by == 1500.0, "Slurm's limit runs on"


def test_who_waits_counts_as_late_by_the_rule_of_the_moment() -> None:
    factor = 1.0
    queue = Queue(late_by=lambda one: factor * one.resources.time)
    waits = queue.put(replace(JOB, state=JobState.PENDING, node=None, devices=(), attempt=0), now=1000.0)
    assert isinstance(waits, Waiting)
    assert waits.late_by == JOB.resources.time
    factor = 0.0
    queue.look_again()
    assert queue.waiting[JOB.id].late_by == 0.0
