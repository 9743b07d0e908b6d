"""What would make a job start: each change is true when it is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from policy_labs import GIB, NOW, holding, lab, node, snapshots, waiting

from carrel.core.domain.placement import Alternative, Snapshot, Waiting
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.units import parse_duration, parse_size
from carrel.core.policy.alternatives import Alternatives
from carrel.core.policy.placer import Placer
from support.examples import examples

HOUR = 3600


def changes_of(snapshot: Snapshot, job: int) -> list[tuple[str, str, str, float]]:
    outcome = Placer.of(snapshot).look(NOW)
    return [
        (one.option, one.value, one.instead_of, 0.0 if one.start is None else one.start - NOW)
        for one in Alternatives(outcome).of(job)
    ]


def test_fewer_gpus_or_less_memory_start_a_job_now() -> None:
    machine = node("n1", "h200", "h200", memory=20 * GIB)
    snapshot = lab([machine], [waiting(1, 2, memory=4 * GIB)], [holding(9, "n1", "n1-0", left=HOUR, memory=GIB)])
    assert changes_of(snapshot, 1) == [("gpus", "1 GPU", "2 GPUs", 0.0)]
    snapshot = lab([machine], [waiting(1, 1, memory=20 * GIB)], [holding(9, "n1", "n1-0", left=HOUR, memory=GIB)])
    assert changes_of(snapshot, 1) == [("memory", "16G", "20G", 0.0)]


def test_a_shorter_walltime_starts_a_job_in_front_of_a_course() -> None:
    course = Reservation(
        name="course", begin=NOW + 4.5 * HOUR, end=NOW + 9 * HOUR, nodes=("n1",), users=frozenset({"zed"}), accounts=frozenset()
    )
    snapshot = lab([node("n1", "h200")], [waiting(1, 1, time=24 * HOUR)], reservations=(course,))
    assert changes_of(snapshot, 1) == [("time", "4 h", "1 d", 0.0)]


def test_another_type_of_gpu_starts_a_job_now() -> None:
    nodes = [node("n1", "h200"), node("n2", "a100")]
    snapshot = lab(nodes, [waiting(1, 1, gpu_type="h200")], [holding(9, "n1", "n1-0", left=HOUR)])
    assert changes_of(snapshot, 1) == [("gpu_type", "a100", "h200", 0.0)]


def test_where_nothing_starts_it_now_the_sooner_promise_is_named() -> None:
    """Of two GPUs one is free in an hour and the other in two."""
    busy = [holding(8, "n1", "n1-0", left=HOUR), holding(9, "n1", "n1-1", left=2 * HOUR)]
    snapshot = lab([node("n1", "h200", "h200")], [waiting(1, 2, ago=9)], busy)
    assert changes_of(snapshot, 1) == [("gpus", "1 GPU", "2 GPUs", float(HOUR))]


def test_a_job_that_nothing_helps_is_told_nothing() -> None:
    snapshot = lab([node("n1", "h200")], [waiting(1, 1)], [holding(9, "n1", "n1-0", left=HOUR)])
    assert changes_of(snapshot, 1) == []
    assert changes_of(snapshot, 77) == []


def changed(job: Waiting, change: Alternative) -> Waiting:
    """The job with that change."""
    read: dict[str, Any] = {
        "time": lambda text: parse_duration(text.replace(" ", "").replace("min", "m")),
        "memory": parse_size,
        "gpu_type": str,
    }
    value = read.get(change.option, lambda text: int(text.split()[0]))(change.value)
    return replace(job, resources=replace(job.resources, **{change.option: value}))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots())
def test_what_is_said_comes_true(snapshot: Snapshot) -> None:
    """The change is made, and the job starts then, or is promised that."""
    outcome = Placer.of(snapshot).look(NOW)
    alternatives = Alternatives(outcome)
    for passed in outcome.passed:
        for change in alternatives.of(passed.job.id):
            jobs = [changed(job, change) if job.id == passed.job.id else job for job in snapshot.waiting]
            then = Placer.of(replace(snapshot, waiting=tuple(jobs))).look(NOW)
            if change.start is None:
                assert passed.job.id in {start.job_id for start in then.starts}, change
            else:
                promise = then.promises.of(passed.job)
                assert promise is not None, change
                assert promise.at == pytest.approx(change.start, abs=1e-6), change
