"""The broker's totals become charges, and are written down: seldom while a session runs, at once when it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from carrel.core.control.borrowing import WRITE_SECONDS, Borrowing
from carrel.core.control.ports import AttemptChange, NewJob, StartOrder
from carrel.core.control.rules import RuleBook
from carrel.core.control.usage import UsageBook
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.rules import LabRules
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User
from carrel.lab.store import Database, Store

RULES = LabRules(qos={"normal": QoS(name="normal")}, default_qos="normal", session_qos="normal", half_life=1e8)
TASK = TaskSpec(entry_point="main", command="true", snapshot="")


class Server:
    """As much of a server as charging needs; a new one on the same store is a restart."""

    def __init__(self, store: Store, now: float) -> None:
        self.store, self.now = store, now
        self.use = UsageBook(RuleBook(RULES))
        self.use.load(store.jobs.used(since=0.0))
        for job in store.jobs.active():
            row = store.jobs.attempt(job.id, job.attempt)
            self.use.put(job, now=now, since=row.leased_at, borrowed=row.lease_seconds)
        self.jobs = FailingJobs(store)
        self.borrowing = Borrowing(jobs=self.jobs, use=self.use, clock=lambda: self.now)  # type: ignore[arg-type]

    def session(self, node: str = "n1", owner: str = "ada") -> Job:
        new = NewJob(
            kind=JobKind.SESSION,
            owner=owner,
            account="physics",
            name="notebook",
            qos="normal",
            resources=Resources(gpus=0),
            retries=0,
            task=TASK,
        )
        job = self.store.jobs.submit(new, now=self.now, key=None, request="", outbox=lambda _job: ()).job
        ((started, _task),) = self.store.jobs.start([StartOrder(job_id=job.id, node=node, devices=())], now=self.now)
        self.use.put(started, now=self.now)
        return started

    def end(self, job: Job) -> None:
        change = AttemptChange(
            job_id=job.id,
            attempt=job.attempt,
            state=JobState.COMPLETED,
            reason=Reason(code="Completed", message=""),
            ended_at=self.now,
            lease_seconds=self.use.charged(job.id, job.attempt),
        )
        for after in self.store.jobs.change([change], now=self.now):
            self.use.put(after, now=self.now)

    def charged(self) -> float:
        return sum(item.seconds for item in self.use.usage(self.now))

    def written(self, job: Job) -> float:
        row = self.store.jobs.attempt(job.id, job.attempt)
        return row.lease_seconds


class FailingJobs:
    """The store's jobs, which do not take charges while `down`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.down = False
        self.writes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store.jobs, name)

    def charge(self, charges: Mapping[tuple[int, int], float]) -> None:
        if self.down:
            raise Unavailable("The lab's database does not answer.")
        self._store.jobs.charge(charges)
        self.writes += 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(Database.at(tmp_path / "lab.db"))
    for name in ("ada", "bob"):
        store.people.add(User(subject=name, name=name), now=1)
    yield store
    store.close()


def test_a_running_session_is_charged_with_each_report_and_written_once_a_minute(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    written = []
    for total in range(1, 14):
        server.now += 10.0
        server.borrowing.report({(job.id, 1): float(total)})
        assert server.charged() == pytest.approx(total, abs=1e-3)
        written.append(server.written(job))
    assert written == [1.0] * 6 + [7.0] * 6 + [13.0]
    assert WRITE_SECONDS == 60.0


def test_the_last_word_after_the_end_is_written_at_once(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    server.borrowing.report({(job.id, 1): 5.0})
    server.borrowing.report({(job.id, 1): 6.0})
    assert server.written(job) == 5.0
    server.end(job)
    assert server.written(job) == 6.0, "with the end itself"
    server.borrowing.report({(job.id, 1): 7.5})
    assert server.written(job) == 7.5
    assert server.charged() == pytest.approx(7.5, abs=1e-3)
    server.borrowing.report({})
    assert server.charged() == pytest.approx(7.5, abs=1e-3)


def test_a_server_that_is_killed_has_forgotten_nothing_and_charges_nothing_twice(store: Store) -> None:
    server = Server(store, 1000.0)
    job, other = server.session(), server.session()
    totals = {(job.id, 1): 5.0, (other.id, 1): 50.0}
    server.borrowing.report(totals)
    server.now += 10.0
    server.borrowing.report(totals | {(job.id, 1): 9.0})
    server.end(other)
    for total in (9.0, 9.0, 12.0):
        server = Server(store, server.now + 10.0)
        server.borrowing.report(totals | {(job.id, 1): total})
        server.borrowing.report(totals | {(job.id, 1): total})
        assert server.charged() == pytest.approx(50.0 + total, abs=1e-3)
    server.end(job)
    server = Server(store, server.now + 10.0)
    assert server.charged() == pytest.approx(62.0, abs=1e-3), "the broker need not say it again"


def test_a_session_that_ended_while_no_server_ran_is_charged_to_its_end(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    server.borrowing.report({(job.id, 1): 5.0})
    server.end(job)
    server = Server(store, 2000.0)
    server.borrowing.report({(job.id, 1): 8.0})
    assert (server.written(job), server.charged()) == (8.0, pytest.approx(8.0, abs=1e-2))


def test_what_a_broker_says_of_strange_jobs_is_nobodys(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    server.borrowing.report({(job.id, 2): 5.0, (4711, 1): 6.0})
    assert server.charged() == 0.0


def test_a_database_that_is_away_delays_the_writing_and_not_the_charge(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    server.jobs.down = True
    server.borrowing.report({(job.id, 1): 5.0})
    server.borrowing.close()
    assert (server.written(job), server.charged()) == (0.0, pytest.approx(5.0))
    server.jobs.down = False
    server.borrowing.report({(job.id, 1): 5.0})
    assert (server.written(job), server.charged()) == (5.0, pytest.approx(5.0))


def test_what_is_written_is_not_written_again(store: Store) -> None:
    server = Server(store, 1000.0)
    server.session()
    job = server.session()
    for server.now in (1000.0, 1100.0, 1200.0):
        server.borrowing.report({(job.id, 1): 5.0})
    server.end(job)
    server.borrowing.report({(job.id, 1): 5.0})
    server.borrowing.close()
    assert (server.jobs.writes, server.written(job)) == (1, 5.0)
    server = Server(store, 1300.0)
    server.borrowing.report({(job.id, 1): 5.0})
    assert (server.jobs.writes, server.charged()) == (0, pytest.approx(5.0, abs=1e-3))


def test_what_a_broker_speaks_of_no_more_is_written_when_the_database_is_back(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    server.borrowing.report({(job.id, 1): 5.0})
    server.borrowing.report({(job.id, 1): 6.0})
    server.end(job)
    server.jobs.down = True
    server.borrowing.report({(job.id, 1): 7.0})
    server.borrowing.report({})
    server.jobs.down = False
    server.borrowing.report({})
    assert server.written(job) == 7.0
    server.borrowing.report({})
    assert server.jobs.writes == 2


def test_what_a_broker_that_began_anew_does_not_know_is_written_all_the_same(store: Store) -> None:
    server = Server(store, 1000.0)
    job = server.session()
    for total in (5.0, 6.0):
        server.borrowing.report({(job.id, 1): total})
    server.borrowing.report({})
    assert server.written(job) == 5.0
    server.borrowing.close()
    assert server.written(job) == 6.0


def test_a_late_word_is_charged_to_whom_the_session_was(store: Store) -> None:
    server = Server(store, 1000.0)
    jobs = [server.session(owner="bob"), server.session()]
    for job in jobs:
        server.end(job)
    server = Server(store, 2000.0)
    server.borrowing.report({(jobs[1].id, 1): 8.0})
    assert {item.user: item.seconds for item in server.use.usage(server.now)} == {"bob": 0.0, "ada": pytest.approx(8.0, abs=1e-2)}


def test_brokers_of_a_cluster_speak_for_the_sessions_there_and_for_no_others(store: Store) -> None:
    server = Server(store, 1000.0)
    here, there = server.session(), server.session("slurm:gpu")
    server.borrowing.report({(here.id, 1): 2.0})
    # What a cluster's broker says of somebody else's session costs nothing.
    server.borrowing.report({(here.id, 1): 50.0, (there.id, 1): 5.0, (4711, 1): 6.0}, cluster=True)
    assert server.charged() == pytest.approx(2.0 + 5.0)
    # The lab hears only now that the session began.
    begun = AttemptChange(job_id=there.id, attempt=1, state=JobState.RUNNING, started_at=900.0)
    (running,) = store.jobs.change([begun], now=server.now)
    server.use.put(running, now=server.now)
    server.borrowing.report({(here.id, 1): 3.0})
    server.borrowing.report({(here.id, 1): 50.0, (there.id, 1): 6.0}, cluster=True)
    assert server.charged() == pytest.approx(3.0 + 6.0)
    server.end(running)
    # The node's last word comes late.
    server.borrowing.report({(there.id, 1): 6.5}, cluster=True)
    assert server.written(running) == 6.5
    server = Server(store, server.now)
    server.borrowing.report({(there.id, 1): 6.5}, cluster=True)
    server.borrowing.report({(here.id, 1): 3.0})
    assert server.charged() == pytest.approx(3.0 + 6.5, rel=1e-3)
