"""What both are told where a job has no place, and the job that waits for it keeps its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace

import pytest
from scheduled import job

from carrel.core.control.parents import SAID_AFTER, WaitingParents
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
    assert parents.next_at(later) is None
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
def test_who_can_give_its_place_or_holds_another_one_is_not_named(change: dict[str, object], why: str) -> None:
    child = replace(CHILD, **{**HERE, "node": None, "state": JobState.PENDING})  # type: ignore[arg-type]
    parents, _, _ = waiting(replace(PARENT, **{**HERE, **change}), child)  # type: ignore[arg-type]
    said = [event.data["message"] for event in parents.news(1000.0)]
    assert len(said) == bool(why)
    assert all(f"keeps its own meanwhile: {why}. If" in one for one in said)


def test_partitions_of_clusters_are_one_place_and_the_labs_own_is_another() -> None:
    """A cluster's partitions may share nodes; the lab's own machine has none of theirs."""
    parents, _, _ = waiting(PARENT, replace(CHILD, partition="other", node="slurm:other"))
    assert [event.job_id for event in parents.news(1000.0)] == [1]
    parents, _, _ = waiting(PARENT, replace(CHILD, partition="", node=None, state=JobState.PENDING))
    assert not parents.news(1000.0)


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
