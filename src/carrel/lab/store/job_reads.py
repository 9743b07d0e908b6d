"""Reads of jobs, attempts and outputs. What pages and programs ask for again and again is in memory."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from carrel.core.control.ports import AttemptRow, JobFilter
from carrel.core.domain.job import ACTIVE, Job, JobState
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.serial import from_plain
from carrel.core.domain.task import TaskSpec
from carrel.lab.store.database import Database
from carrel.lab.store.known import Known
from carrel.lab.store.rows import attempt_of, job_of
from carrel.lab.store.tables import ACTIVE_ONLY, attempts, jobs, outputs, submissions

#: Jobs whose descriptions are remembered.
_MOST = 500


class Specs:
    """Gives the description of a job without reading it again. Thread-safe."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, TaskSpec] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, job_ids: Iterable[int], spec: TaskSpec) -> None:
        """These jobs were written down with this description."""
        with self._lock:
            self._known.update(dict.fromkeys(job_ids, spec))
            while len(self._known) > _MOST:
                self._known.popitem(last=False)

    def get(self, job_id: int) -> TaskSpec | None:
        """The description, if it is remembered."""
        return self._known.get(job_id)

    def read(self, job_id: int, text: str) -> TaskSpec:
        """The description that the database has as `text`."""
        known = self._known.get(job_id)
        if known is None:
            known = from_plain(TaskSpec, json.loads(text))
            self.add((job_id,), known)
        return known


_ACTIVE = sorted(state.value for state in ACTIVE)
#: Everything of a job but its description, which is long and rarely wanted.
_JOB = [column for column in jobs.c if column.name != "spec"]
#: One job by `job_id`. Built once: SQLAlchemy then only binds the parameter.
SELECT_JOB = sa.select(*_JOB).where(jobs.c.id == sa.bindparam("job_id"))
_SELECT_ATTEMPTS = sa.select(attempts).where(attempts.c.job_id == sa.bindparam("job_id")).order_by(attempts.c.number)
#: Longer lists are not remembered.
_PAGE = 101


class JobReads:
    """The reading half of `carrel.lab.store.jobs.JobTable`."""

    def __init__(self, database: Database, specs: Specs) -> None:
        self._database = database
        self._specs = specs
        self._jobs: Known[int, Job] = Known(database, jobs, most=1000)
        self._pages: Known[tuple[JobFilter, int | None, int], Sequence[Job]] = Known(database, jobs, most=50)
        self._attempts: Known[int, Sequence[AttemptRow]] = Known(database, attempts, most=500, fits=_short)
        self._outputs: Known[tuple[int, int], Sequence[StoredFile]] = Known(database, outputs, most=500, fits=_short)

    def get(self, job_id: int) -> Job | None:
        """The job, or None."""
        return self._jobs.read(job_id, lambda: self._get(job_id))

    def known(self, job_id: int) -> Job | None:
        """The same without the database; None where that is not enough."""
        return self._jobs.get(job_id)

    def elements(self, array_id: int, index: int | None = None) -> Sequence[Job]:
        """The jobs of an array in the order of their indices, or that of one index; none where there is no such array."""
        query = sa.select(*_JOB).where(jobs.c.array_job_id == array_id).order_by(jobs.c.array_task_id)
        if index is not None:
            query = query.where(jobs.c.array_task_id == index)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def same_as(self, owner: str, key: str) -> Sequence[Job]:
        """The owner's jobs whose `cache_key` begins so that have ended well, newest first."""
        # Keys are hexadecimal: the range finds them by the index.
        same = sa.and_(jobs.c.cache_key >= key, jobs.c.cache_key < key + "g")
        query = sa.select(*_JOB).where(same, jobs.c.owner == owner, jobs.c.state == JobState.COMPLETED.value)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query.order_by(jobs.c.id.desc()).limit(20))]

    def submitted_as(self, owner: str, key: str) -> Job | None:
        """The job that the owner has submitted with this idempotency key, or None."""
        query = sa.select(*_JOB).join(submissions, submissions.c.job_id == jobs.c.id)
        with self._database.read() as connection:
            row = connection.execute(query.where(submissions.c.owner == owner, submissions.c.key == key)).first()
        return None if row is None else job_of(row)

    def namesake(self, job: Job) -> Job | None:
        """The newest other job of that owner and name that has not ended, and came before `job` or holds resources; or None."""
        query = sa.select(*_JOB).where(
            jobs.c.owner == job.owner,
            jobs.c.name == job.name,
            sa.text(ACTIVE_ONLY),
            jobs.c.id != job.id,
            sa.or_(jobs.c.id < job.id, jobs.c.state != JobState.PENDING.value),
        )
        with self._database.read() as connection:
            row = connection.execute(query.order_by(jobs.c.id.desc()).limit(1)).first()
        return None if row is None else job_of(row)

    def task(self, job_id: int) -> TaskSpec | None:
        """What the job was asked to do, or None."""
        if (known := self._specs.get(job_id)) is not None:
            return known
        with self._database.read() as connection:
            spec = connection.execute(sa.select(jobs.c.spec).where(jobs.c.id == job_id)).scalar()
        return None if spec is None else self._specs.read(job_id, spec)

    def list(self, which: JobFilter, *, before: int | None, limit: int) -> Sequence[Job]:
        """Newest first, ids smaller than `before`; one index range, however many jobs there are."""
        if limit > _PAGE:
            return self._list(which, before, limit)
        return self._pages.read((which, before, limit), lambda: self._list(which, before, limit)) or []

    def active(self) -> Sequence[Job]:
        """All jobs that have not ended, oldest first."""
        query = sa.select(*_JOB).where(jobs.c.state.in_(_ACTIVE)).order_by(jobs.c.id)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def attempts(self, job_id: int) -> Sequence[AttemptRow]:
        """All attempts, first to last."""
        return self._attempts.read(job_id, lambda: self._get_attempts(job_id)) or []

    def attempt(self, job_id: int, number: int) -> AttemptRow | None:
        """One attempt, or None."""
        query = sa.select(attempts).where(attempts.c.job_id == job_id, attempts.c.number == number)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else attempt_of(row)

    def outputs(self, job_id: int, attempt: int) -> Sequence[StoredFile]:
        """Stored outputs of one attempt, by path."""
        return self._outputs.read((job_id, attempt), lambda: self._get_outputs(job_id, attempt)) or []

    def output(self, job_id: int, attempt: int, path: str) -> StoredFile | None:
        """The stored output of one attempt that has this path, or None."""
        query = _outputs_of(job_id, attempt).where(outputs.c.path == path)
        with self._database.read() as connection:
            return next(map(_stored_file, connection.execute(query)), None)

    def _get(self, job_id: int) -> Job | None:
        with self._database.read() as connection:
            row = connection.execute(SELECT_JOB, {"job_id": job_id}).first()
        return None if row is None else job_of(row)

    def _list(self, which: JobFilter, before: int | None, limit: int) -> Sequence[Job]:
        query = sa.select(*_JOB).order_by(jobs.c.id.desc()).limit(limit)
        if which.owner is not None:
            query = query.where(jobs.c.owner == which.owner)
        if which.states:
            query = query.where(jobs.c.state.in_(sorted(state.value for state in which.states)))
        if which.kind is not None:
            query = query.where(jobs.c.kind == which.kind.value)
        if which.name is not None:
            query = query.where(jobs.c.name == which.name)
        if which.parent is not None:
            query = query.where(jobs.c.parent == which.parent)
        if which.pipeline is not None:
            query = query.where(jobs.c.pipeline == which.pipeline)
        if which.array_id is not None:
            query = query.where(jobs.c.array_job_id == which.array_id)
        if which.accounts is not None:
            query = query.where(jobs.c.account.in_(sorted(which.accounts)))
        if before is not None:
            query = query.where(jobs.c.id < before)
        with self._database.read() as connection:
            return [job_of(row) for row in connection.execute(query)]

    def _get_attempts(self, job_id: int) -> Sequence[AttemptRow]:
        with self._database.read() as connection:
            return [attempt_of(row) for row in connection.execute(_SELECT_ATTEMPTS, {"job_id": job_id})]

    def _get_outputs(self, job_id: int, attempt: int) -> Sequence[StoredFile]:
        with self._database.read() as connection:
            return list(map(_stored_file, connection.execute(_outputs_of(job_id, attempt).order_by(outputs.c.path))))


def _outputs_of(job_id: int, attempt: int) -> sa.Select[Any]:
    return sa.select(outputs).where(outputs.c.job_id == job_id, outputs.c.attempt == attempt)


def _stored_file(row: sa.Row[Any]) -> StoredFile:
    return StoredFile(path=row.path, size=row.size, digest=row.digest, removed_at=row.removed_at)


def _short(rows: Sequence[object]) -> bool:
    return len(rows) < _PAGE
