"""Store, events and engine of tests of what jobs need before their place, without any of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carrel.core.control.before_place import BeforePlace
from carrel.core.control.event_ports import NewEvent
from carrel.core.control.prerequisites import Prepares
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import (
    Ended,
    EnvironmentReady,
    InputsReady,
    Journaled,
    JournalRecord,
    Launch,
    LaunchLimits,
    LaunchPaths,
    Observation,
)
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import EnvironmentKind, EnvironmentRecipe, InputSpec, TaskSpec

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


def builds(name: str, **more: Any) -> TaskSpec:
    recipe = EnvironmentRecipe(kind=EnvironmentKind.REQUIREMENTS, requirements=(name,), **more)
    return TaskSpec(entry_point="main", command="true", snapshot="sha256:0", environment=recipe)


class Played:
    """Store, events and engine: what was started and ended, what people were told, and jobs that have failed."""

    def __init__(self, *tasks: TaskSpec) -> None:
        self.tasks = tasks
        self.started: list[int] = []
        self.launches: list[Launch] = []
        self.ended: list[int] = []
        self.ended_by: list[str] = []
        self.kept_logs: list[int] = []
        self.told: list[str] = []
        #: Whose log was told of, and how many bytes.
        self.logs: list[tuple[int, object]] = []
        #: Packages whose environments are there.
        self.there: set[str] = set()
        self.looks = 0
        #: True: nothing can be started.
        self.full = False
        #: What the rules say is seen to before a place.
        self.prepares = Prepares.HERE
        self.forgotten: list[int] = []

    def task(self, job_id: int) -> TaskSpec:
        return self.tasks[job_id - 1] if self.tasks else TASK

    def fail(self, job_id: int, *, reason: Reason, now: float, **_more: Any) -> Job:
        assert now >= 0.0
        return replace(job(job_id), state=JobState.FAILED, reason=reason, ended_at=1.0)

    def start(self, launch: Launch, *, token: str) -> None:
        assert token == f"token of {launch.job_id}"
        if self.full:
            raise Unavailable("The disk is full.")
        self.started.append(launch.job_id)
        self.launches.append(launch)

    def cancel(self, job_id: int, attempt: int, *, by: str) -> None:
        assert attempt == 0
        self.ended.append(job_id)
        self.ended_by.append(by)

    def forget(self, job_id: int, attempt: int, *, over: bool) -> None:
        assert attempt == 0
        self.forgotten.append(job_id)
        self.kept_logs += [job_id] if over else []

    def append(self, events: list[NewEvent], *, now: float) -> None:
        assert now >= 0.0
        self.logs += [(event.job_id, event.data["size"]) for event in events if event.type == "log"]
        self.told += [event.type if event.type == "log" else str(event.data["message"]) for event in events]

    def built(self, launch: Launch) -> bool:
        self.looks += 1
        return not self.there.isdisjoint(launch.task.environment.requirements)

    def before_place(self) -> BeforePlace:
        played: Any = self
        return BeforePlace(
            jobs=played, events=played, engine=played, prepares=self.prepares_of, launch=launch_of, built=self.built,
            token=lambda one: f"token of {one.id}", withdrawal=lambda _job, _task: (),
        )  # fmt: skip

    def prepares_of(self, one: Job) -> Prepares:
        assert one.id
        return self.prepares

    def waits(self, *numbers: int) -> BeforePlace:
        """Have those jobs wait whose numbers these are, and begin what may begin."""
        found = self.before_place()
        assert [found.keeps(job(number), 0.0) for number in numbers] == [True for _ in numbers]
        assert list(found.turn(0.0, None)) == []
        return found


def two_that_wait() -> tuple[BeforePlace, Played]:
    played = Played()
    found = played.waits(1, 2)
    assert played.started == [1]
    return found, played


def over(state: JobState, code: str) -> Observation:
    return news(InputsReady(digests={"in": "sha256:0"}), Ended(state=state, reason=Reason(code=code, message="")))


def news(*records: JournalRecord, of: int = 1, log_size: int | None = None) -> Observation:
    entries = tuple(Journaled(at=1.0, record=record) for record in records)
    return Observation(job_id=of, attempt=0, entries=entries, log_size=log_size)


READY = EnvironmentReady(digest="sha256:e", lock="", python="", built=True, seconds=1.0)
WELL = Ended(state=JobState.COMPLETED, reason=Reason(code="Completed", message=""))
BADLY = Ended(state=JobState.FAILED, reason=Reason(code="EnvironmentFailed", message="No such package.\n"))


def reasons(found: BeforePlace, *numbers: int) -> list[tuple[str, str]]:
    told = [found.reason(number) for number in numbers]
    return [(one.code, one.message) for one in told if one is not None]
