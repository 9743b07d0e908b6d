"""How many jobs come from a session, and that there are never more than it may have."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from stored import new_job

from carrel.core.control.session_limit import check_jobs_of_jobs
from carrel.core.domain.errors import Denied, TooMany
from carrel.core.domain.job import Job, Reason
from carrel.core.domain.qos import JobKind
from carrel.core.domain.task import TaskSpec
from carrel.lab.store import Store

TASK = TaskSpec(entry_point="main", command="true", snapshot="sha256:0")


def submit(
    store: Store, parent: int | None, *, kind: JobKind = JobKind.TASK, key: str | None = None, most: int = 3, more: int = 1
) -> Job:
    new = new_job(kind=kind, parent=parent)
    admit = partial(check_jobs_of_jobs, more=more, session_jobs=most, task_jobs=5)
    return store.jobs.submit(new, now=2.0, key=key, request="r", outbox=lambda _job: (), admit=admit).job


def end(store: Store, job: Job) -> None:
    reason = Reason(code="Cancelled", message="")
    store.jobs.request_cancel(job.id, by="ada", reason=reason, now=3.0, outbox=lambda _job, _task: ())


@pytest.mark.gate
def test_jobs_of_its_jobs_count_also_when_those_between_have_ended(store: Store) -> None:
    session = submit(store, None, kind=JobKind.SESSION)
    child = submit(store, session.id)
    grandchild = submit(store, child.id)
    submit(store, grandchild.id)
    with pytest.raises(TooMany, match=f"Session {session.id} has 3 jobs that wait or run, and the lab lets a session have 3"):
        submit(store, grandchild.id)
    end(store, child)
    assert submit(store, grandchild.id).parent == grandchild.id
    with pytest.raises(TooMany):
        submit(store, session.id)
    end(store, grandchild)
    with pytest.raises(TooMany, match="has 2 jobs"):
        submit(store, session.id, more=2)


def test_a_task_that_submits_itself_comes_to_an_end(store: Store) -> None:
    job = submit(store, None)
    for _ in range(5):
        job = submit(store, job.id)
    with pytest.raises(TooMany, match=r"Tasks of yours have submitted 5 jobs that wait or run, .* have 5 at once \(task_jobs\)"):
        submit(store, submit(store, None).id)
    end(store, job)
    assert submit(store, job.id).parent == job.id


def test_sessions_do_not_share_a_limit(store: Store) -> None:
    for _ in range(2):
        session = submit(store, None, kind=JobKind.SESSION)
        for _ in range(3):
            submit(store, session.id)
    with pytest.raises(Denied, match="session_jobs"):
        submit(store, session.id, most=0)


def test_a_known_key_gives_the_known_job_at_the_limit(store: Store) -> None:
    session = submit(store, None, kind=JobKind.SESSION)
    made = [submit(store, session.id, key=f"k{number}") for number in range(3)]
    assert submit(store, session.id, key="k1").id == made[1].id
    assert submit(store, session.id, key="k1", most=0).id == made[1].id
    with pytest.raises(TooMany):
        submit(store, session.id, key="k3")


def test_many_at_once_do_not_pass_the_limit(store: Store) -> None:
    session = submit(store, None, kind=JobKind.SESSION)
    together, refused = threading.Barrier(12), []

    def one() -> None:
        together.wait()
        try:
            submit(store, session.id)
        except TooMany as error:
            refused.append(error)

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 9
    assert sum(job.parent == session.id for job in store.jobs.active()) == 3
