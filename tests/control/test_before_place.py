"""What jobs need before their place: who waits for what with whom, and what is done of it at once.

Whoever drives that may fail in the middle (a full disk, a database that is down): nobody who waited is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from carrel.core.control.before_place import BeforePlace
from carrel.core.control.ports import NewEvent
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
    Preparing,
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
        self.kept_logs: list[int] = []
        self.told: list[str] = []
        #: Packages whose environments are there.
        self.there: set[str] = set()
        self.looks = 0

    def task(self, job_id: int) -> TaskSpec:
        return self.tasks[job_id - 1] if self.tasks else TASK

    def fail(self, job_id: int, *, reason: Reason, **_more: Any) -> Job:
        return replace(job(job_id), state=JobState.FAILED, reason=reason, ended_at=1.0)

    def start(self, launch: Launch, **_more: Any) -> None:
        self.started.append(launch.job_id)
        self.launches.append(launch)

    def cancel(self, job_id: int, _attempt: int, **_more: Any) -> None:
        self.ended.append(job_id)

    def forget(self, job_id: int, _attempt: int, *, over: bool) -> None:
        self.kept_logs += [job_id] if over else []

    def append(self, events: list[NewEvent], **_more: Any) -> None:
        self.told += [event.type if event.type == "log" else str(event.data["message"]) for event in events]

    def built(self, launch: Launch) -> bool:
        self.looks += 1
        return not self.there.isdisjoint(launch.task.environment.requirements)

    def waits(self, *numbers: int) -> BeforePlace:
        """Have those jobs wait whose numbers these are, and begin what may begin."""
        played: Any = self
        found = BeforePlace(
            jobs=played, events=played, engine=played, here=lambda _job: True, launch=launch_of, built=self.built,
            token=lambda _job: "", withdrawal=lambda _job, _task: (),
        )  # fmt: skip
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


def test_an_environment_that_is_there_is_looked_for_once_in_a_while_and_nothing_begins() -> None:
    played = Played(builds("alpha"), builds("alpha"), builds("alpha"))
    played.there.add("alpha")
    found = played.waits()
    assert [found.keeps(job(number), now) for number, now in ((1, 0.0), (2, 9.0), (3, 11.0))] == [False, False, False]
    assert (played.started, played.looks) == ([], 2)


def test_a_recipe_that_cannot_be_looked_up_is_left_to_who_builds_it() -> None:
    def broken(_launch: Launch) -> bool:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    played = Played(builds("alpha"))
    played.built = broken  # type: ignore[method-assign]
    played.waits(1)
    assert played.started == [1]


def test_jobs_with_one_environment_wait_for_one_build_whoever_of_them_is_cancelled() -> None:
    played = Played(builds("alpha"), builds("alpha", source="other.txt"), builds("beta"))
    found = played.waits(1, 2, 3)
    assert [(launch.job_id, launch.build, launch.stage_in, launch.attempt) for launch in played.launches] == [
        (1, True, False, 0),
        (3, True, False, 0),
    ]
    found.hear([news(Preparing(message="installing 2 packages"))], 1.0)
    assert reasons(found, 1, 2, 3) == [
        ("BuildEnvironment", "Its environment is being built: installing 2 packages."),
        ("BuildEnvironment", "Its environment, the same as that of job 1, is being built: installing 2 packages."),
        ("BuildEnvironment", "Its environment is being built: this begins."),
    ]
    found.forget(replace(job(1), state=JobState.CANCELLED))
    assert played.ended == []
    found.hear([news(READY, WELL)], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [2]
    found.forget(replace(job(3), state=JobState.CANCELLED))  # the last one
    assert played.ended == [3]


def test_code_makes_environments_differ_only_where_it_is_a_part_of_them() -> None:
    def snapshots(**more: Any) -> Played:
        return Played(
            *(replace(builds("-e ."), snapshot=digest, environment=builds("-e .", **more).environment) for digest in "ab")
        )

    apart, together = snapshots(local=True), snapshots()
    apart.waits(1, 2)
    together.waits(1, 2)
    assert (apart.started, together.started) == ([1, 2], [1])


def test_two_builds_of_one_user_at_once_and_fetches_beside_them() -> None:
    both = replace(builds("delta"), inputs=TASK.inputs)
    played = Played(builds("alpha"), builds("beta"), builds("gamma"), both)
    found = played.waits(1, 2, 3, 4)
    assert played.started == [1, 2, 4]
    ((code, message),) = reasons(found, 3)
    assert code == "BuildEnvironment"
    assert message == ("Its environment is built before it is placed; at most 2 builds of one user, and 8 in all, run at once.")
    found.hear([news(READY, WELL)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1]
    assert played.started == [1, 2, 4, 3]


def test_what_another_has_built_meanwhile_is_not_begun() -> None:
    played = Played(builds("alpha"), builds("beta"), builds("gamma"))
    found = played.waits(1, 2, 3)
    played.there.add("gamma")
    found.hear([news(READY, WELL)], 1.0)
    assert [one.id for one in found.turn(1.0, None)] == [1, 3]
    assert played.started == [1, 2]


def test_an_environment_and_inputs_are_seen_to_by_one_runner() -> None:
    both = replace(builds("alpha"), inputs=TASK.inputs)
    played = Played(both, TASK, both)
    found = played.waits(1)
    ((launch),) = played.launches
    assert (launch.build, launch.stage_in) == (True, True)
    assert reasons(found, 1) == [("BuildEnvironment", "Its environment is being built: this begins.")]
    found.hear([news(READY, Preparing(message="fetching the input in"))], 1.0)
    assert reasons(found, 1) == [("StageIn", "Its inputs are fetched before it is placed: fetching the input in.")]
    inputs = InputsReady(digests={"in": "sha256:0"})
    found.hear([news(inputs, WELL)], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [1]
    assert found.found(1) == inputs
    assert [found.keeps(job(2), 3.0), found.found(2)] == [False, inputs]  # fetched a moment ago, for whatever environment
    assert found.keeps(job(3), 30.0)  # nobody says any more that the environment is there: it is built, and nothing fetched
    list(found.turn(30.0, None))
    assert [(one.build, one.stage_in) for one in played.launches[1:]] == [(True, False)]
    found.hear([news(READY, WELL, of=3)], 31.0)
    assert [one.id for one in found.turn(31.0, None)] == [3]
    assert found.found(3) == inputs


def test_who_fails_of_a_build_has_its_log_or_is_told_where_it_is() -> None:
    played = Played(*(builds("alpha") for _ in range(3)))
    found = played.waits(1, 2)
    assert found.keeps(replace(job(3), retries_left=1), 0.0)
    found.hear([news(BADLY, log_size=70)], 1.0)
    after = {one.id: (one.state, one.reason.message) for one in found.turn(1.0, None)}
    assert after == {
        1: (JobState.FAILED, "No such package.\n"),
        2: (
            JobState.FAILED,
            "No such package.\nIt is the environment of job 1, too, whose log says more: `carrel logs 1`.",
        ),
        3: (JobState.PENDING, ""),
    }
    assert (played.kept_logs, played.told.count("log")) == ([1], 1)


def test_a_build_whose_runner_is_lost_is_begun_again_and_then_left_to_the_attempts() -> None:
    played = Played(builds("alpha"), builds("alpha"))
    found = played.waits(1, 2)
    gone = Observation(job_id=1, attempt=0, gone=True)
    found.hear([gone], 1.0)
    assert (list(found.turn(1.0, None)), played.started) == ([], [1, 1])
    found.hear([gone], 2.0)
    assert [one.id for one in found.turn(2.0, None)] == [1, 2]
    assert played.kept_logs == []
