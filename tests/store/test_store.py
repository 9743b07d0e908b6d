"""What the store promises, on every database that a lab may use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from stored import new_job

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.news import interpret
from carrel.core.control.ports import AttemptChange, JobFilter, OutboxEntry, PreemptOrder, StartOrder
from carrel.core.domain.array import read_array
from carrel.core.domain.errors import Conflict, StorageFull
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import Ended, Journaled, JournalRecord, Observation, Resumed, Started, StoredFile, Suspended, Usage
from carrel.core.domain.node import Drain
from carrel.core.domain.nouns import DRAINS
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import GitState, TaskSpec
from carrel.core.domain.token import Token
from carrel.core.domain.user import Role, User, UserState
from carrel.lab.store import Database, Store

ALICE, BOB = User(subject="alice", name="Alice", role=Role.ADMIN), User(subject="bob", name="Bob")
TASK = TaskSpec(
    entry_point="main",
    command="python train.py --lr '0.1'",
    snapshot="sha256:" + "0" * 64,
    parameters={"lr": "0.1"},
    git=GitState(commit="abc", dirty=True, diff="--- a\n+++ b\n"),
)
CANCELLED = Reason(code="Cancelled", message="Cancelled by Alice.")


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(Database(database_url))
    store.people.add(ALICE, now=1)
    store.people.add(BOB, now=1)
    yield store
    store.close()


@pytest.mark.gate
def test_what_was_used_is_read_from_the_attempts(store: Store) -> None:
    one, other = submit(store, gpus=1), submit(store, "bob")
    assert store.jobs.used(since=0.0) == []
    for job, at in ((one, 100.0), (other, 200.0)):
        start(store, job, *("GPU-0",) * job.resources.gpus)
        reason = Reason(code="None", message="done")
        store.jobs.change([AttemptChange(job_id=job.id, attempt=1, state=JobState.FAILED, reason=reason, ended_at=at)], now=at)
    found = store.jobs.used(since=0.0)
    assert [(item.owner, item.account, item.gpus, item.cpus, item.until) for item in found] == [
        ("alice", "default", 1, 1, 100.0),
        ("bob", "default", 0, 1, 200.0),
    ]
    assert all(item.since < item.until for item in found)
    assert [item.owner for item in store.jobs.used(since=150.0)] == ["bob"]


def test_what_cells_were_charged_stays_with_the_attempt_and_only_grows(store: Store) -> None:
    session, task = start(store, submit(store)), start(store, submit(store, "bob"))
    assert [row.lease_seconds for row in store.jobs.attempts(session.id)] == [0.0]
    store.jobs.charge({(session.id, 1): 12.5})
    store.jobs.charge({(session.id, 1): 11.0, (session.id, 2): 99.0, (4711, 1): 99.0})
    assert [row.lease_seconds for row in store.jobs.attempts(session.id)] == [12.5]
    done = {"state": JobState.COMPLETED, "reason": COMPLETED.reason}
    first = AttemptChange(job_id=session.id, attempt=1, ended_at=30.0, lease_seconds=13.0, **done)
    store.jobs.change([first, AttemptChange(job_id=task.id, attempt=1, ended_at=31.0, **done)], now=31.0)
    store.jobs.charge({(session.id, 1): 14.0})  # the broker's last word comes after the end
    assert [(item.owner, item.lease_seconds) for item in store.jobs.used(since=0.0)] == [("alice", 14.0), ("bob", 0.0)]


def test_the_end_of_an_attempt_does_not_take_back_what_was_charged(store: Store) -> None:
    session = start(store, submit(store))
    store.jobs.charge({(session.id, 1): 12.5})
    fewer = AttemptChange(
        job_id=session.id, attempt=1, state=JobState.COMPLETED, reason=COMPLETED.reason, ended_at=30.0, lease_seconds=12.0
    )
    store.jobs.change([fewer], now=30.0)
    assert [item.lease_seconds for item in store.jobs.used(since=0.0)] == [12.5]


@pytest.mark.parametrize("wrong", [1e300, float("inf"), -1e300, 9.1e9])
def test_moments_that_no_clock_shows_are_corrected_when_it_is_opened(store: Store, database_url: str, wrong: float) -> None:
    jobs = [start(store, submit(store)) for _ in range(2)]
    done = {"state": JobState.COMPLETED, "reason": COMPLETED.reason, "started_at": 25.0, "ended_at": 30.0}
    store.jobs.change([AttemptChange(job_id=job.id, attempt=1, **done) for job in jobs], now=31.0)
    with store.database.write() as connection:
        for table, key in (("jobs", "id"), ("attempts", "job_id")):
            values = {"at": wrong, "job": jobs[0].id}
            connection.execute(
                sa.text(f"UPDATE {table} SET started_at = :at, ended_at = :at, suspended_seconds = :at WHERE {key} = :job"),
                values,
            )
    again = Store(Database(database_url), clock=lambda: 40.0)
    try:
        spoilt, sound = (again.jobs.get(job.id) for job in jobs)
        assert (spoilt.started_at, spoilt.ended_at, spoilt.suspended_seconds) == (40.0, 40.0, 0.0)
        assert (sound.started_at, sound.ended_at) == (25.0, 30.0)
        assert [(item.until, item.suspended_seconds) for item in again.jobs.used(since=0.0)] == [(30.0, 0.0), (40.0, 0.0)]
    finally:
        again.close()


def submit(
    store: Store, owner: str = "alice", *, key: str | None = None, request: str = "r", gpus: int = 0, **fields: object
) -> Job:
    new = new_job(
        owner,
        name=str(fields.get("name", "digits")),
        resources=Resources(gpus=gpus),
        retries=int(str(fields.get("retries", 0))),
        task=TASK,
        array=str(fields.get("array", "")),
        indices=read_array(str(fields["array"])).indices if "array" in fields else (),
    )
    return store.jobs.submit(new, now=10.0, key=key, request=request, outbox=lambda _job: ()).job


def start(store: Store, job: Job, *devices: str) -> Job:
    ((started, task),) = store.jobs.start([StartOrder(job_id=job.id, node="n1", devices=devices)], now=20.0)
    assert task == TASK
    return started


def end(store: Store, job: Job, ended: Ended, at: float = 30.0) -> Job:
    entries = (Journaled(at=at - 5, record=Started(pid=1)), Journaled(at=at, record=ended))
    news = Observation(job_id=job.id, attempt=job.attempt, entries=entries, offset=100)
    (after,) = store.jobs.change([interpret(job, news, log_size=0, now=at)], now=at)
    return after


COMPLETED = Ended(state=JobState.COMPLETED, reason=Reason(code="Completed", message="Exit code 0."), exit_code=0)


def test_a_job_keeps_its_whole_description(store: Store) -> None:
    job = submit(store, gpus=2)
    assert store.jobs.get(job.id) == job
    assert store.jobs.task(job.id) == TASK
    assert (job.state, job.resources.gpus, job.attempt) == (JobState.PENDING, 2, 0)


def test_an_array_is_there_as_a_whole_or_not_at_all(store: Store) -> None:
    before = submit(store)
    first = submit(store, array="0-8:2%2", key="k")
    assert submit(store, array="0-8:2%2", key="k") == store.jobs.get(first.id)
    found = store.jobs.elements(first.id)
    told = [(job.element.array_id, job.element.index, job.element.at_most) for job in found if job.element is not None]
    assert told == [(first.id, index, 2) for index in (0, 2, 4, 6, 8)]
    assert store.jobs.elements(first.id, 4) == [found[2]]
    assert [job.id for job in found] == sorted(job.id for job in found)
    assert store.jobs.elements(before.id) == []
    many = len(store.jobs.active())

    def fails(job: Job) -> tuple[()]:
        if job.element.index == 3:
            raise Conflict("The disk is full, say.")
        return ()

    new = new_job("alice", name="more", task=TASK, array="1-4", indices=(1, 2, 3, 4))
    with pytest.raises(Conflict):
        store.jobs.submit(new, now=10.0, key="other", request="r", outbox=fails)
    assert len(store.jobs.active()) == many
    # The next of a name: the newest that came before it, or that runs.
    assert [store.jobs.namesake(job) for job in (before, found[0], found[1])] == [None, before, found[0]]
    running = start(store, found[4])
    assert store.jobs.namesake(found[1]) == running
    assert store.jobs.namesake(submit(store, owner="bob")) is None


def test_the_same_key_gives_the_same_job_and_another_request_is_refused(store: Store) -> None:
    job = submit(store, key="k", request="one")
    assert submit(store, key="k", request="one").id == job.id
    assert submit(store, owner="bob", key="k", request="one").id != job.id, "keys belong to their owner"
    with pytest.raises(Conflict, match=f'"k" was used for job {job.id}'):
        submit(store, key="k", request="two")
    assert len(store.jobs.list(JobFilter(), before=None, limit=10)) == 2


def test_many_threads_with_one_key_make_one_job(store: Store) -> None:
    jobs: list[int] = []
    threads = [threading.Thread(target=lambda: jobs.append(submit(store, key="k").id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jobs) == 8
    assert len(set(jobs)) == 1


def test_a_start_makes_an_attempt_and_leases_and_the_end_gives_them_back(store: Store) -> None:
    job = start(store, submit(store, gpus=2), "GPU-1", "GPU-2")
    assert (job.state, job.attempt, job.node) == (JobState.CONFIGURING, 1, "n1")
    assert store.jobs.holders() == {"GPU-1": job.id, "GPU-2": job.id}
    files = (StoredFile(path="outputs/model", size=3, digest="sha256:1"),)
    job = end(store, job, replace(COMPLETED, outputs=files, usage=Usage(cpu_seconds=2.5, memory_peak=7)))
    assert (job.state, job.exit_code, job.started_at, job.ended_at) == (JobState.COMPLETED, 0, 25.0, 30.0)
    assert store.jobs.holders() == {}
    assert store.jobs.outputs(job.id, 1) == list(files)
    (attempt,) = store.jobs.attempts(job.id)
    assert (attempt.state, attempt.usage.cpu_seconds, attempt.journal_offset) == (JobState.COMPLETED, 2.5, 100)
    assert store.jobs.get(job.id) == job


def test_a_device_cannot_be_in_two_leases(store: Store) -> None:
    start(store, submit(store, gpus=1), "GPU-1")
    second = submit(store, gpus=1)
    with pytest.raises(IntegrityError):
        start(store, second, "GPU-1")
    after = store.jobs.get(second.id)
    assert after.state is JobState.PENDING, "a refused start leaves nothing behind"


WAY = Preemption(mode=PreemptMode.REQUEUE, by=9, qos="desk", at=20.0, grace=60)
GIVES_WAY = Reason(code="Preempting", message="It gives way.")


def gives_way(store: Store, job: Job, way: Preemption = WAY) -> Job | None:
    order = PreemptOrder(job_id=job.id, attempt=job.attempt, preemption=way, reason=GIVES_WAY)
    return next(iter(store.jobs.preempt([order], now=25.0)), None)


def test_who_gives_way_is_remembered_until_it_is_in_line_again(store: Store) -> None:
    job = start(store, submit(store, gpus=1, retries=1), "GPU-1")
    after = gives_way(store, job)
    assert after == store.jobs.get(job.id) == replace(job, preemption=WAY, reason=GIVES_WAY)
    assert [event.data["message"] for event in store.events.after(0, job_id=job.id, owner=None, limit=99)][-1] == "It gives way."
    assert gives_way(store, job) is None, "it gives way already"
    over = Ended(state=JobState.PREEMPTED, reason=Reason(code="Preempted", message="Taken."), exit_code=1)
    again = end(store, after, over)
    assert (again.state, again.retries_left, again.preemption, again.submitted_at) == (JobState.PENDING, 1, None, 10.0)
    assert store.jobs.get(job.id) == replace(again, devices=("GPU-1",))
    assert gives_way(store, again) is None
    second = start(store, again, "GPU-1")
    assert (second.attempt, second.started_at) == (2, None)
    assert gives_way(store, replace(second, attempt=1)) is None, "that attempt is over"
    store.jobs.request_cancel(job.id, by="alice", reason=CANCELLED, now=26.0)
    assert gives_way(store, second) is None, "somebody wants its end"


def test_who_is_stopped_gives_its_leases_back_and_takes_them_again(store: Store) -> None:
    job = start(store, submit(store, gpus=1), "GPU-1")
    way = replace(WAY, mode=PreemptMode.SUSPEND)

    def news(at: float, offset: int, *records: JournalRecord) -> Job:
        entries = tuple(Journaled(at=at, record=record) for record in records)
        now = store.jobs.get(job.id)
        assert now is not None
        seen = Observation(job_id=job.id, attempt=1, entries=entries, offset=offset)
        (after,) = store.jobs.change([interpret(now, seen, log_size=0, now=at)], now=at)
        assert after == store.jobs.get(job.id)
        return after

    running = news(30.0, 10, Started(pid=1))
    assert store.jobs.keep([job.id], now=30.0) == [], "it does not give way"
    assert gives_way(store, running, way) is not None
    (keeps,) = store.jobs.keep([job.id, 4711], now=30.0)
    assert keeps == store.jobs.get(job.id)
    assert (keeps.preemption, keeps.reason.code) == (None, "Running")
    assert store.jobs.holders() == {"GPU-1": job.id}
    assert gives_way(store, running, way) is not None
    assert store.jobs.resume([job.id], now=31.0) == []
    stopped = news(40.0, 20, Suspended())
    assert (stopped.stopped, stopped.suspended_at, stopped.devices) == (True, 40.0, ("GPU-1",))
    assert store.jobs.keep([job.id], now=41.0) == [], "it is stopped already"
    assert store.jobs.holders() == {}
    other = start(store, submit(store, "bob", gpus=1), "GPU-1")
    assert store.jobs.resume([job.id], now=50.0) == [], "its device is another's"
    assert store.jobs.get(job.id) == stopped
    end(store, other, COMPLETED)
    (going,) = store.jobs.resume([job.id, 4711], now=60.0)
    assert (going.state, going.stopped, going.reason.code) == (JobState.SUSPENDED, False, "Resuming")
    assert store.jobs.holders() == {"GPU-1": job.id}
    on = news(61.0, 30, Resumed(seconds=20.5))
    assert (on.state, on.suspended_at, on.suspended_seconds, on.started_at) == (JobState.RUNNING, None, 20.5, 30.0)
    done = news(99.0, 40, COMPLETED)
    assert (done.state, done.suspended_seconds) == (JobState.COMPLETED, 20.5)
    used = {item.owner: item for item in store.jobs.used(since=0.0)}
    assert (used["alice"].suspended_seconds, used["bob"].suspended_seconds) == (20.5, 0.0)
    assert [row.suspended_seconds for row in store.jobs.attempts(job.id)] == [20.5]


def test_news_of_an_older_attempt_changes_nothing(store: Store) -> None:
    first = start(store, submit(store, retries=1), "GPU-1")
    failed = Ended(state=JobState.FAILED, reason=Reason(code="NonZeroExitCode", message="Exit code 3."), exit_code=3)
    again = end(store, first, failed)
    assert (again.state, again.retries_left, again.reason.code) == (JobState.PENDING, 0, "Requeued")
    second = start(store, again, "GPU-1")
    assert second.attempt == 2
    late = AttemptChange(
        job_id=first.id, attempt=1, state=JobState.COMPLETED, reason=Reason(code="Completed", message=""), ended_at=1
    )
    assert store.jobs.change([late], now=40) == []
    assert store.jobs.get(first.id) == second
    assert store.jobs.holders() == {"GPU-1": first.id}
    assert [row.state for row in store.jobs.attempts(first.id)] == [JobState.FAILED, JobState.CONFIGURING]


def test_an_ended_job_stays_ended(store: Store) -> None:
    job = end(store, start(store, submit(store)), COMPLETED)
    late = AttemptChange(
        job_id=job.id, attempt=1, state=JobState.NODE_FAIL, reason=Reason(code="RunnerLost", message=""), ended_at=99
    )
    assert store.jobs.change([late], now=99) == []
    assert store.jobs.request_cancel(job.id, by="Alice", reason=CANCELLED, now=99) == job


def test_cancelling_ends_a_waiting_job_and_marks_a_running_one(store: Store) -> None:
    waiting, running = submit(store), start(store, submit(store), "GPU-1")
    ended = store.jobs.request_cancel(waiting.id, by="Alice", reason=CANCELLED, now=30)
    assert (ended.state, ended.ended_at, ended.cancelled_by) == (JobState.CANCELLED, 30, "Alice")
    marked = store.jobs.request_cancel(running.id, by="Alice", reason=CANCELLED, now=30)
    assert (marked.state, marked.cancelled_by) == (JobState.CONFIGURING, "Alice")
    assert store.jobs.start([StartOrder(job_id=waiting.id, node="n1", devices=())], now=31) == []
    assert store.jobs.request_cancel(12345, by="Alice", reason=CANCELLED, now=30) is None


def test_listing_goes_newest_first_in_pages(store: Store) -> None:
    mine = [submit(store).id for _ in range(5)]
    submit(store, owner="bob", name="other")
    page = store.jobs.list(JobFilter(owner="alice"), before=None, limit=2)
    assert [job.id for job in page] == [mine[4], mine[3]]
    page = store.jobs.list(JobFilter(owner="alice"), before=page[-1].id, limit=9)
    assert [job.id for job in page] == [mine[2], mine[1], mine[0]]
    assert [job.owner for job in store.jobs.list(JobFilter(name="other"), before=None, limit=9)] == ["bob"]
    assert store.jobs.list(JobFilter(states=frozenset({JobState.RUNNING})), before=None, limit=9) == []


def test_users_of_the_same_name_are_told_apart_by_subject(store: Store) -> None:
    jobs = {}
    for subject in ("idp|1", "idp|2"):
        store.people.add(User(subject=subject, name="Alex"), now=1)
        jobs[subject] = submit(store, owner=subject).id
    for subject, job_id in jobs.items():
        assert [job.id for job in store.jobs.list(JobFilter(owner=subject), before=None, limit=9)] == [job_id]
        assert {event.job_id for event in store.events.after(0, job_id=None, owner=subject, limit=9)} == {job_id}


def test_events_tell_every_state_in_order(store: Store) -> None:
    job = end(store, start(store, submit(store)), COMPLETED)
    events = store.events.after(0, job_id=job.id, owner="alice", limit=99)
    assert [event.data["state"] for event in events] == ["PENDING", "CONFIGURING", "RUNNING", "COMPLETED"]
    assert events[-1].data["exit_code"] == 0
    assert [event.id for event in events] == sorted(event.id for event in events)
    assert store.events.after(events[1].id, job_id=job.id, owner=None, limit=1) == [events[2]]
    assert store.events.after(0, job_id=job.id, owner="bob", limit=99) == []
    assert store.events.last_id() == events[-1].id


def test_subscribers_are_told_after_the_commit(store: Store) -> None:
    seen: list[int] = []
    unsubscribe = store.events.subscribe(lambda: seen.append(store.events.last_id()))
    job = submit(store)
    assert seen == [store.events.last_id()]
    unsubscribe()
    store.events.append([NewEvent(job_id=job.id, owner="alice", type="progress", data={"message": "x"})], now=1)
    assert len(seen) == 1


def test_the_outbox_keeps_order_until_told(store: Store) -> None:
    job = submit(store)
    store.outbox.add(job.id, [OutboxEntry(kind="create_run", payload={"a": 1}), OutboxEntry(kind="end_run", payload={})], now=1)
    first, second = store.outbox.pending(10)
    assert (first.kind, first.payload, second.kind) == ("create_run", {"a": 1}, "end_run")
    store.outbox.done([first.id])
    store.outbox.failed(second.id, "RESOURCE_DOES_NOT_EXIST")
    assert store.outbox.pending(10) == []
    assert store.outbox.refused(job.id) == ["RESOURCE_DOES_NOT_EXIST"]
    assert store.outbox.run_of(job.id) is None
    store.outbox.set_run(job.id, "r1", "7")
    assert store.outbox.run_of(job.id) == ("r1", "7")


def new_token(digest: str, subject: str = "bob", **more: Any) -> Token:
    return Token(digest=digest, user=subject, name="n", scopes=("read", "tracking"), created_by="alice", **more)


def test_tokens_are_known_by_digest_and_can_be_revoked(store: Store) -> None:
    made = store.tokens.add(new_token("d1", expires_at=9.0, account="optics"), now=1)
    assert store.tokens.find("d1") == (made, BOB)
    assert store.tokens.find("d2") is None
    assert (made.scopes, made.account, made.valid(8.9), made.valid(9.0)) == (("read", "tracking"), "optics", True, False)
    store.tokens.used({made.id: 5.0, 99: 6.0})
    assert store.tokens.get(made.id) == (replace(made, last_used_at=5.0), BOB)
    other = store.tokens.add(new_token("d3"), now=2)
    assert store.tokens.revoke(by="alice", now=3, token_id=made.id) == 1
    assert store.tokens.revoke(by="alice", now=4, token_id=made.id) == 0
    assert [(one.id, one.revoked_at, one.revoked_by) for one in store.tokens.list("bob")] == [
        (made.id, 3.0, "alice"),
        (other.id, None, None),
    ]
    assert store.tokens.list("alice") == []
    assert store.tokens.revoke(by="bob", now=5, subject="bob") == 1
    assert store.people.get("bob") == replace(BOB, revoked_at=5.0)
    with pytest.raises(Conflict, match='"bob" exists.*carrel user reset bob'):
        store.people.add(BOB, now=3)


def test_a_token_takes_the_place_of_others_in_one_step(store: Store) -> None:
    first, second = (store.tokens.add(new_token(digest), now=1) for digest in ("d1", "d2"))
    third = store.tokens.replace(new_token("d3"), by="alice", now=2, token_id=first.id)
    assert store.tokens.replace(new_token("d4"), by="alice", now=3, token_id=first.id) is None
    assert store.tokens.find("d4") is None
    store.tokens.replace(new_token("d5"), by="alice", now=4)
    assert [one.revoked_at for one in store.tokens.list("bob")] == [2.0, 4.0, 4.0, None]
    assert second.id < third.id


def test_what_was_made_by_showing_a_token_ends_with_it(store: Store) -> None:
    first, second = (store.tokens.add(new_token(digest), now=1) for digest in ("d1", "d2"))
    for parent in (first, second):
        assert store.tokens.add(new_token(f"of {parent.id}", parent=parent.id), now=2).parent == parent.id
    assert store.tokens.revoke(by="bob", now=3, token_id=first.id) == 2
    assert [one.revoked_at for one in store.tokens.list("bob")] == [3.0, None, 3.0, None]


def test_the_last_administrator_stays(store: Store) -> None:
    change = partial(store.people.set_state, reason="away", by="alice", now=2.0)
    assert not change("alice", UserState.SUSPENDED)
    assert not change("alice", UserState.REMOVED)
    assert store.people.get("alice") == ALICE
    assert change("bob", UserState.SUSPENDED)
    assert store.people.get("bob") == replace(
        BOB, state=UserState.SUSPENDED, state_reason="away", state_by="alice", state_since=2.0
    )
    store.people.add(User(subject="root", name="Root", role=Role.ADMIN), now=3)
    assert change("alice", UserState.SUSPENDED)
    assert not change("root", UserState.SUSPENDED)


def test_a_snapshot_belongs_to_those_who_uploaded_it(store: Store) -> None:
    store.people.add_snapshot("alice", "sha256:1", now=1)
    store.people.add_snapshot("alice", "sha256:1", now=2)
    assert store.people.may_use_snapshot("alice", "sha256:1")
    assert not store.people.may_use_snapshot("bob", "sha256:1")


def test_a_full_disk_is_a_clear_error_and_the_store_stays_sound(tmp_path: Path) -> None:
    store = Store(Database.at(tmp_path / "lab.db"))
    store.people.add(ALICE, now=1)
    with store.database.write() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    # What SQLite meets at the end of a disk, without filling one.
    limited = Database.at(tmp_path / "lab.db")
    with pytest.raises(StorageFull, match="cannot grow.*Free space"), limited.write() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        for number in range(10_000):
            connection.exec_driver_sql("INSERT INTO lab VALUES (?, ?)", (f"k{number}", "x" * 500))
    limited.close()
    job = submit(store)
    assert store.jobs.get(job.id) == job
    with store.database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    store.close()


def test_drained_nodes_are_remembered_until_they_are_not(store: Store) -> None:
    assert not store.of(DRAINS).all()
    store.of(DRAINS).put(Drain(node="n2", reason="new GPUs", by="alice", since=1.0))
    store.of(DRAINS).put(Drain(node="n1", reason="fire", by="alice", since=2.0))
    store.of(DRAINS).put(Drain(node="n2", reason="newer GPUs", by="alice", since=3.0))
    assert [(one.node, one.reason, one.since) for one in store.of(DRAINS).all()] == [
        ("n1", "fire", 2.0),
        ("n2", "newer GPUs", 3.0),
    ]
    assert store.of(DRAINS).remove("n1")
    assert not store.of(DRAINS).remove("n1")
    assert [one.node for one in store.of(DRAINS).all()] == ["n2"]
