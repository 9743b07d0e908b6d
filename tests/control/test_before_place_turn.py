"""Whoever drives fetches may fail in the middle (a full disk, a database that is down): nobody who waited for one is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from carrel.control.before_place import BeforePlace
from carrel.domain.job import Job, JobState, Reason
from carrel.domain.launch import Ended, InputsReady, Journaled, Launch, LaunchLimits, LaunchPaths, Observation
from carrel.domain.qos import JobKind
from carrel.domain.resources import Resources
from carrel.domain.task import InputSpec, TaskSpec

TASK = TaskSpec(entry_point="main", command="true", snapshot="", inputs=(InputSpec(path="in", uri="https://host/data"),))


def job(number: int) -> Job:
    return Job(
        id=number, kind=JobKind.TASK, owner="ada", account="default", name="job", qos="normal", resources=Resources(),
        state=JobState.PENDING, reason=Reason(code="", message=""), submitted_at=0.0, stage_in=True,
    )  # fmt: skip


def launch_of(one: Job, task: TaskSpec) -> Launch:
    return Launch(
        job_id=one.id, attempt=0, kind=one.kind, owner=one.owner, name="job", account="default", qos="normal", node="", task=task,
        resources=one.resources, devices=(), paths=LaunchPaths(environments="", snapshots="", blobs="", inputs="kept"),
        limits=LaunchLimits(input_cache=1024**2),
    )  # fmt: skip


class Played:
    """Store, events and engine: what was started, and jobs that have failed."""

    def __init__(self) -> None:
        self.started: list[int] = []

    def task(self, _job_id: int) -> TaskSpec:
        return TASK

    def fail(self, job_id: int, *, reason: Reason, **_more: Any) -> Job:
        return replace(job(job_id), state=JobState.FAILED, reason=reason, ended_at=1.0)

    def start(self, launch: Launch, **_more: Any) -> None:
        self.started.append(launch.job_id)

    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_words, **_more: None


def two_that_wait() -> tuple[BeforePlace, Played]:
    played: Any = Played()
    found = BeforePlace(
        jobs=played, events=played, engine=played, here=lambda _job: True, launch=launch_of, built=lambda _launch: False,
        token=lambda _job: "", withdrawal=lambda _job, _task: (),
    )  # fmt: skip
    assert [found.keeps(job(number), 0.0) for number in (1, 2)] == [True, True]
    assert list(found.turn(0.0, None)) == []
    assert played.started == [1]
    return found, played


def over(state: JobState, code: str) -> Observation:
    records = (InputsReady(digests={"in": "sha256:0"}), Ended(state=state, reason=Reason(code=code, message="")))
    return Observation(job_id=1, attempt=0, entries=tuple(Journaled(at=1.0, record=record) for record in records))


def test_whom_the_caller_could_not_deal_with_comes_again() -> None:
    for state, code in ((JobState.COMPLETED, "Completed"), (JobState.FAILED, "InputFailed")):
        found, _ = two_that_wait()
        found.hear([over(state, code)], 1.0)
        broken = found.turn(1.0, None)
        first = next(broken)
        broken.close()  # the caller has failed
        assert first.id == 1
        assert [one.id for one in found.turn(2.0, None)] == [1, 2]
        assert list(found.turn(3.0, None)) == []


def test_who_is_cancelled_before_that_does_not_come_again() -> None:
    found, _ = two_that_wait()
    found.hear([over(JobState.COMPLETED, "Completed")], 1.0)
    found.turn(1.0, None).close()
    found.forget(replace(job(1), state=JobState.CANCELLED, ended_at=2.0))
    assert [one.id for one in found.turn(2.0, None)] == [2]
