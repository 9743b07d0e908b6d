"""What both are told where a job has no place, and the job that waits for it keeps its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from scheduled import Scheduled, job, machines, rules, settings

from carrel.core.control.parents import GIVES_AFTER, SAID_AFTER, WaitingParents
from carrel.core.control.queue import Queue
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind

RUNS = Reason(code="Running", message="Its command is running.")
PLACE = {"attempt": 1, "node": "slurm:gpu", "partition": "gpu"}
PARENT = job(1, gpus=0, cpus=4, time=600, state=JobState.RUNNING, reason=RUNS, started_at=0.0, **PLACE)
WAITS = Reason(code="Preparing", message="It waits in Slurm.")
CHILD = replace(PARENT, id=2, name="child", state=JobState.CONFIGURING, reason=WAITS, started_at=None, parent=1)
HERE = {"node": "n1", "partition": ""}


def waiting(parent: Job, child: Job, since: float = 100.0) -> tuple[WaitingParents, Queue, ExitStack]:
    queue = Queue()
    for one in (parent, child):
        queue.put(one, now=since)
    parents, stack = WaitingParents(queue), ExitStack()
    stack.enter_context(parents.waits(parent.id, child.id, since))
    return parents, queue, stack


def test_both_are_told_after_a_while_and_the_log_once() -> None:
    parents, _, connected = waiting(PARENT, CHILD)
    assert parents.next_at(100.0) == 100.0 + SAID_AFTER
    assert not parents.news(100.0)
    assert parents.explain(2, WAITS, 100.0) is WAITS
    later = 100.0 + SAID_AFTER
    (event,) = parents.news(later)
    assert (event.job_id, event.type, event.data["reason"]) == (1, "progress", "WaitsForJob")
    said = event.data["message"]
    assert "job 2, which has no place yet" in said
    assert "a job on a cluster cannot give its place away" in said
    assert "cancel job 1" in said
    assert not parents.news(later + 1)
    assert parents.next_at(later) == 100.0 + GIVES_AFTER
    assert parents.next_at(100.0 + GIVES_AFTER) is None
    assert parents.explain(1, PARENT.reason, later).message == said
    assert parents.explain(2, WAITS, later).message.startswith("It waits in Slurm. Job 1, which submitted it, waits for it")
    connected.close()
    assert parents.explain(2, WAITS, later) is WAITS


def test_a_child_that_has_its_place_is_not_explained() -> None:
    parents, queue, _ = waiting(PARENT, CHILD)
    queue.seen(2, offset=80, log_size=None)
    assert not parents.news(1000.0)
    queue.put(replace(CHILD, state=JobState.RUNNING), now=1000.0)
    assert parents.explain(1, PARENT.reason, 1000.0) is PARENT.reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"preemptible": False}, "it was submitted with --no-preempt"),
        ({"devices": ("GPU-1",)}, "a job on several nodes, or with a real GPU, cannot be stopped"),
        ({"kind": JobKind.SESSION}, "a session cannot be stopped"),
        ({"state": JobState.SUSPENDED}, ""),
        ({"preemptible": False, "partition": "other"}, ""),
    ],
)
def test_who_keeps_its_place_says_why_and_anybody_else_what_the_child_waits_for(change: dict[str, object], why: str) -> None:
    child = replace(CHILD, **{**HERE, "node": None, "state": JobState.PENDING})  # type: ignore[arg-type]
    parents, _, _ = waiting(replace(PARENT, **{**HERE, **change}), child)  # type: ignore[arg-type]
    said = [event.data["message"] for event in parents.news(1000.0)]
    if change.get("state") is JobState.SUSPENDED:
        assert not said
    elif why:
        assert f"keeps its own meanwhile: {why}. If" in said[0]
    else:
        gives = " This job gives it all that it holds but its memory."
        assert said == [f"It waits for job 2, which has no place yet: It waits in Slurm.{'' if 'partition' in change else gives}"]


def test_partitions_of_clusters_are_one_place_and_the_labs_own_is_another() -> None:
    """A cluster's partitions may share nodes; the lab's own machine has none of theirs."""
    parents, _, _ = waiting(PARENT, replace(CHILD, partition="other", node="slurm:other"))
    assert [event.job_id for event in parents.news(1000.0)] == [1]
    parents, _, _ = waiting(PARENT, replace(CHILD, partition="", node=None, state=JobState.PENDING))
    (event,) = parents.news(1000.0)
    assert event.data["message"] == "It waits for job 2, which has no place yet: It waits in Slurm."


def test_who_is_over_or_not_in_line_yet_explains_nothing() -> None:
    for gone in (1, 2):
        parents, queue, _ = waiting(PARENT, CHILD)
        queue.put(replace(PARENT if gone == 1 else CHILD, state=JobState.COMPLETED), now=200.0)
        assert not parents.news(1000.0)
        assert parents.explain(3 - gone, WAITS, 1000.0) is WAITS
    here = replace(PARENT, preemptible=False, **HERE)  # type: ignore[arg-type]
    parents, queue, _ = waiting(here, replace(CHILD, state=JobState.PENDING, **{**HERE, "node": None}))  # type: ignore[arg-type]
    assert [event.job_id for event in parents.news(1000.0)] == [1]
    queue.set_aside(2)
    assert parents.explain(1, WAITS, 1000.0) is WAITS


def test_both_are_told_the_same_reason_and_the_same_remedy() -> None:
    parents, _, _ = waiting(PARENT, CHILD)
    why = "a job on a cluster cannot give its place away"
    remedy = "If there is no room for both, cancel job 1, and give it less, or another partition than its children."
    assert parents.explain(1, PARENT.reason, 1000.0) == Reason(
        code="WaitsForJob",
        message=f"It waits for job 2, which has no place yet, and keeps its own meanwhile: {why}. {remedy}",
    )
    assert parents.explain(2, WAITS, 1000.0) == replace(
        WAITS,
        message=f"It waits in Slurm. Job 1, which submitted it, waits for it and keeps its own place meanwhile: {why}. {remedy}",
    )


def test_a_job_is_waited_for_as_long_as_one_connection_says_so() -> None:
    parents, _, first = waiting(PARENT, CHILD)
    with parents.waits(1, 2, 500.0), parents.waits(7, 8, 500.0):
        assert (parents.of(2), parents.of(8), parents.of(1)) == (1, 7, None)
        first.close()
        assert parents.children() == {2, 8}
        assert [event.job_id for event in parents.news(505.0)] == [1], "it has waited since 100"
    assert (parents.of(2), parents.children()) == (None, frozenset())


def test_who_has_waited_for_long_has_gpus_for_others() -> None:
    has = {**HERE, "devices": ("sim-1",)}
    child = replace(CHILD, **{**HERE, "state": JobState.RUNNING})  # type: ignore[arg-type]
    parents, _, connected = waiting(replace(PARENT, **has), child)  # type: ignore[arg-type]
    with parents.waits(1, 9, 120.0):
        assert (parents.idle(100.0 + GIVES_AFTER - 1), parents.idle(100.0 + GIVES_AFTER)) == (frozenset(), {1})
        assert parents.child_of(1) == 2
        connected.close()
        assert (parents.idle(100.0 + GIVES_AFTER), parents.child_of(1)) == (frozenset(), 9)
    without, _, _ = waiting(PARENT, CHILD)
    assert not without.idle(1000.0)


def test_a_parent_that_has_waited_for_long_is_stopped_for_another_job_and_goes_on_after_its_child() -> None:
    lab = Scheduled(machines(1, {1: 500.0, 2: 200.0, 3: 50.0}), settings(rules(), tells=False))
    lab.cycle(0.0, job(1, time=1000))
    lab.cycle(1.0, job(2, parent=1, gpus=0, time=1000))
    with lab.scheduler.parents.waits(1, 2, 1.0):
        lab.cycle(2.0, job(3, owner="bob", time=100))
        lab.cycle(30.0)
        assert lab.store.get(3).state is JobState.PENDING
        now = 1.0 + GIVES_AFTER
        lab.cycle(now)
        lab.cycle(now + 1)
        lab.cycle(now + 2)
        assert lab.store.get(1).state is JobState.SUSPENDED
        assert "as it waits for job 2" in lab.store.get(1).reason.message
        assert lab.store.get(3).started_at is not None
        lab.cycle(now + 60)
        lab.cycle(now + 61)
        assert lab.store.get(3) is None, "it is over"
        assert lab.store.get(1).state is JobState.SUSPENDED, "its child is not over"
        lab.cycle(202.0)
        lab.cycle(203.0)
    assert (lab.store.get(2), lab.store.get(1).state) == (None, JobState.RUNNING)


def test_who_waits_for_whom_is_known_also_of_jobs_that_are_no_children() -> None:
    parents, _, _ = waiting(PARENT, CHILD)
    with parents.waits_for_another(2, 3), parents.waits_for_another(3, 4):
        assert parents.waits_already(1, 4)
        assert not parents.waits_already(4, 1)
        assert parents.children() == {2}, "who did not submit it gives it nothing"
    assert not parents.waits_already(1, 4)
    assert parents.waits_already(1, 2)
    assert parents.waits_already(5, 5), "nobody waits for oneself"
