"""Who may come into the line: not who waits for other jobs, for an environment, or belongs to a suspended user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played import READY, WELL, Played, builds, job, news
from scheduled import machines, rules, settings

from carrel.core.control.admission import Admission
from carrel.core.control.held_users import NO_ROOM, held_by
from carrel.core.control.inbox import News
from carrel.core.control.ports import NewJob, OutboxEntry
from carrel.core.control.rules import RuleBook
from carrel.core.control.scheduler import Scheduler
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User
from carrel.lab.store import Database, Store

TASK = TaskSpec(entry_point="main", command="true", snapshot="")
SUSPENDED = Reason(code="UserHeld", message="Suspended.")
RULES = RuleBook(rules(share_weight=0.0))


class Lab:
    """A scheduler on a virtual clock, with one GPU, and the lab's own store. Jobs run for 100 seconds."""

    def __init__(self, path: Path) -> None:
        self.store = Store(Database.at(path))
        for name in ("ada", "bob"):
            self.store.people.add(User(subject=name, name=name, account=name), now=0.0)
        self.engine = machines(1, defaultdict(lambda: 100.0))
        self.held: Mapping[str, Reason] = {}
        #: Jobs whose withdrawal the tracking server is told of.
        self.withdrawn: list[int] = []
        self.submitted: list[Job] = []
        self.scheduler = Scheduler(
            jobs=self.store.jobs,
            events=self.store.events,
            engine=self.engine,
            settings=settings(RULES, held=lambda: self.held, withdrawal=self.withdraw),
        )

    def withdraw(self, job: Job, _task: TaskSpec) -> Sequence[OutboxEntry]:
        self.withdrawn.append(job.id)
        return ()

    def submit(self, dependency: str = "", *, owner: str = "ada", seconds: int = 100, kind: JobKind = JobKind.TASK) -> int:
        new = NewJob(
            kind=kind, owner=owner, account=owner, name="", qos="all", resources=Resources(gpus=1, time=seconds),
            retries=0, task=TASK, dependency=dependency,
        )  # fmt: skip
        one = self.store.jobs.submit(new, now=self.engine.now, key=None, request="", outbox=lambda _job: ()).job
        self.submitted.append(one)
        return one.id

    def cancel(self, number: int) -> None:
        reason = Reason(code="Cancelled", message="")
        after = self.store.jobs.request_cancel(number, by="ada", reason=reason, now=self.engine.now)
        assert after is not None
        self.submitted.append(after)

    def runs(self, now: float) -> set[int]:
        """Return who runs then."""
        self.engine.now = now
        found = News(jobs=list(self.submitted), observations=self.engine.ended())
        self.submitted.clear()
        self.scheduler.cycle(found, now)
        return {held.id for held in self.scheduler.holding()}

    def job(self, number: int) -> Job:
        found = self.store.jobs.get(number)
        assert found is not None
        return found


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "lab.db")
    yield lab
    lab.store.close()


def test_who_waits_for_what_can_never_be_is_withdrawn_and_so_are_those_behind(lab: Lab) -> None:
    first = lab.submit(seconds=50)  # it is cut off by its walltime
    second, third = lab.submit(f"afterok:{first}"), lab.submit("afterok:2")
    fourth = lab.submit("afternotok:3")
    assert lab.runs(0.0) == {first}
    assert lab.runs(50.0) == {fourth}
    assert [lab.job(number).state for number in (first, second, third)] == [JobState.TIMEOUT] + [JobState.CANCELLED] * 2
    after = lab.job(second)
    assert (after.cancelled_by, after.ended_at, after.reason.code) == ("the lab", 50.0, "DependencyNeverSatisfied")
    assert after.reason.message.endswith(" That can never be any more.")
    assert f" {first}" in after.reason.message
    assert lab.withdrawn == [second, third]
    assert lab.scheduler.next_at() is None


def test_what_can_never_be_from_the_start_is_withdrawn_at_once(lab: Lab) -> None:
    first = lab.submit()
    lab.runs(0.0)
    lab.runs(100.0)
    second = lab.submit(f"afternotok:{first}")
    assert lab.runs(101.0) == set()
    assert lab.job(second).state is JobState.CANCELLED


def test_jobs_of_a_suspended_user_leave_the_line_and_come_back(lab: Lab) -> None:
    first, second, third, fourth = lab.submit(), lab.submit(), lab.submit(), lab.submit(owner="bob")
    assert lab.runs(0.0) == {first}
    lab.held = {"ada": SUSPENDED}
    fifth = lab.submit()
    assert lab.runs(1.0) == {first}, "what runs goes on"
    lab.cancel(third)
    assert lab.runs(100.0) == {fourth}
    assert lab.job(first).state is JobState.COMPLETED
    lab.held = {}
    assert lab.runs(101.0) == {fourth}
    lab.held = {}  # nothing is another than before
    assert lab.runs(200.0) == {second}
    assert lab.runs(300.0) == {fifth}
    assert lab.runs(400.0) == set()


def test_tasks_of_who_has_no_more_room_leave_the_line_and_sessions_do_not(lab: Lab) -> None:
    first, second = lab.submit(), lab.submit()
    assert lab.runs(0.0) == {first}
    lab.held = {"ada": Reason(code=NO_ROOM, message="Full.")}
    third = lab.submit(kind=JobKind.SESSION)
    assert lab.runs(100.0) == {third}
    assert held_by(lab.held, lab.job(second)) == lab.held["ada"]
    assert held_by(lab.held, lab.job(third)) is None
    lab.held = {}
    assert lab.runs(200.0) == {second}


def test_a_job_that_waited_for_another_and_whose_owner_was_suspended_meanwhile_waits_for_both(lab: Lab) -> None:
    first = lab.submit(owner="bob")
    second = lab.submit(f"afterok:{first}")
    assert lab.runs(0.0) == {first}
    lab.held = {"ada": SUSPENDED}
    assert lab.runs(100.0) == set()
    lab.held = {}
    assert lab.runs(101.0) == {second}


# ---- the admission alone


class Door:
    """An admission, and whom it has kept out."""

    def __init__(self, *tasks: TaskSpec) -> None:
        self.played: Any = Played(*tasks)
        self.halt: Reason | None = None
        self.held: Mapping[str, Reason] = {}
        self.kept_out: list[int] = []
        self.before_place = self.played.before_place()
        found = settings(RULES, halted=lambda: self.halt, held=lambda: self.held)
        self.admission = Admission(
            self.played, found, self.before_place, keep_out=lambda one: self.kept_out.append(one.id), put=self.put
        )

    def put(self, one: Job, _now: float) -> None:
        raise AssertionError(f"Job {one.id} has not ended.")


def test_who_waits_for_an_environment_is_kept_out_of_the_line_until_it_is_there() -> None:
    door = Door(builds("alpha"), builds("alpha"))
    door.halt = Reason(code="StorageFull", message="The disk is full.")
    assert not door.admission.admits(job(1), 0.0)
    assert door.kept_out == [1]
    assert list(door.admission.turn(0.0)) == []
    assert door.played.started == [], "nothing is built where nothing may start"
    door.halt = None
    assert list(door.admission.turn(1.0)) == []
    assert door.played.started == [1]
    door.before_place.hear([news(READY, WELL)], 2.0)
    assert [one.id for one in door.admission.turn(2.0)] == [1]
    assert [door.admission.admits(job(number), 3.0) for number in (1, 2)] == [True, True]


def test_whom_the_caller_could_not_deal_with_comes_again(lab: Lab) -> None:
    first = lab.job(lab.submit())
    seconds = [lab.job(lab.submit(f"afterany:{first.id}")) for _ in range(2)]
    admission = Admission(
        lab.store.jobs, settings(RULES), Played().before_place(),
        keep_out=lambda _one: None, put=lambda _one, _now: None,
    )  # fmt: skip
    assert [admission.admits(one, 0.0) for one in (first, *seconds)] == [True, False, False]
    assert not admission
    admission.changed(replace(first, state=JobState.COMPLETED, attempt=1))
    broken: Any = admission.turn(1.0)
    assert next(broken).id == seconds[0].id
    broken.close()  # the caller has failed
    assert admission
    again = []
    for one in admission.turn(2.0):
        assert admission.admits(one, 2.0)
        again.append(one.id)
    assert (again, bool(admission)) == ([one.id for one in seconds], False)
