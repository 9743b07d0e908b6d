"""Jobs, attempts, leases and outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.news import progress_event, state_event
from carrel.core.control.ports import (
    AttemptChange,
    NewJob,
    OutboxEntry,
    PreemptOrder,
    StartOrder,
    Submitted,
    Used,
)
from carrel.core.domain.job import ACTIVE, HOLDING, Job, JobState, Reason
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.partition import read_cluster
from carrel.core.domain.qos import JobKind
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.units import LATEST
from carrel.core.spool.foreign import LONGEST
from carrel.lab.store.attempts import (
    apply_change,
    attempt_row,
    charge_attempt,
    collect_outputs,
    ended_values,
    insert_leases,
    reason_values,
    started_values,
)
from carrel.lab.store.database import Database
from carrel.lab.store.descendants import check_descendants
from carrel.lab.store.events import EventTable, insert_events
from carrel.lab.store.job_reads import SELECT_JOB, JobReads, Specs
from carrel.lab.store.new_jobs import insert_jobs, submitted_before
from carrel.lab.store.outbox import insert_entries
from carrel.lab.store.rows import dump, job_of
from carrel.lab.store.tables import attempts, jobs, leases, submissions

_ACTIVE = sorted(state.value for state in ACTIVE)
_HOLDING = frozenset(HOLDING)
_MOMENTS, _SECONDS = ("started_at", "ended_at", "suspended_at"), ("suspended_seconds", "lease_seconds")
_RESUMING = Reason(code="Resuming", message="Its GPUs or processors are free again. It resumes.")
_KEEPS = Reason(code="Running", message="Its GPU state cannot be moved, so it keeps its GPUs and is not stopped.")
_PREPARING = Reason(code="Preparing", message="Its environment and inputs are being prepared.")

_SELECT_JOB_AND_SPEC = sa.select(jobs).where(jobs.c.id == sa.bindparam("job_id"))


class JobTable(JobReads):
    """Implements `carrel.core.control.ports.JobStore`."""

    def __init__(self, database: Database, events: EventTable) -> None:
        super().__init__(database, Specs())
        self._events = events

    def submit(
        self,
        new: NewJob,
        *,
        now: float,
        key: str | None,
        request: str,
        outbox: Callable[[Job], Sequence[OutboxEntry]],
        admit: Callable[[int | None, int], None] | None = None,
    ) -> Submitted:
        """Write the job down as PENDING, or all elements of an array. The same `key` of the same owner gives the same job again.

        Raises `Conflict` when the key was used for another request (`request` is a digest). `admit` may refuse a job that a
        job submits: it gets the number of the session that it comes from, and how many of the jobs that come from that have not
        ended; else None, and how many jobs of the owner have not ended that jobs have submitted.
        """
        with self._database.write() as connection:
            earlier = None if key is None else submitted_before(connection, new.owner, key, request)
            if earlier is not None:
                return Submitted(job=job_of(connection.execute(SELECT_JOB, {"job_id": earlier}).one()), created=False)
            check_descendants(connection, new.owner, new.parent, admit)
            made = insert_jobs(connection, new, now)
            if key is not None:
                connection.execute(sa.insert(submissions).values(owner=new.owner, key=key, request=request, job_id=made[0].id))
            insert_events(connection, [state_event(job) for job in made], now)
            for job in made:
                insert_entries(connection, job.id, outbox(job), now)
        self._specs.add((job.id for job in made), new.task)
        self._events.announce()
        return Submitted(job=made[0], created=True, made=made)

    def start(self, orders: Sequence[StartOrder], *, now: float) -> Sequence[tuple[Job, TaskSpec]]:
        """PENDING becomes CONFIGURING, with a new attempt and its leases."""
        started: list[tuple[Job, TaskSpec]] = []
        news: list[NewEvent] = []
        with self._database.write() as connection:
            for order in orders:
                row = connection.execute(_SELECT_JOB_AND_SPEC, {"job_id": order.job_id}).first()
                if row is None or row.state != JobState.PENDING:
                    continue  # cancelled meanwhile
                job = replace(
                    job_of(row),
                    state=JobState.CONFIGURING,
                    reason=_PREPARING,
                    attempt=row.attempt + 1,
                    node=order.node,
                    devices=order.devices,
                    exit_code=None,
                    signal=None,
                    started_at=None,
                )
                connection.execute(sa.update(jobs).where(jobs.c.id == job.id), started_values(job))
                connection.execute(sa.insert(attempts), attempt_row(job, now))
                insert_leases(connection, job, now)
                news.append(state_event(job))
                started.append((job, self._specs.read(job.id, row.spec)))
            insert_events(connection, news, now)
        self._events.announce()
        return started

    def preempt(self, orders: Sequence[PreemptOrder], *, now: float) -> Sequence[Job]:
        """Remember that these attempts are preempted, unless they are over, are preempted already, or somebody wants their
        end."""
        changed: list[Job] = []
        news: list[NewEvent] = []
        with self._database.write() as connection:
            for order in orders:
                row = connection.execute(SELECT_JOB, {"job_id": order.job_id}).first()
                if row is None or row.attempt != order.attempt or JobState(row.state) not in _HOLDING:
                    continue
                job = job_of(row)
                if job.preemption is not None or job.cancelled_by is not None or job.state is JobState.SUSPENDED:
                    continue
                job = replace(job, preemption=order.preemption, reason=order.reason)
                values = {**reason_values(job), "preempted_by": dump(to_plain(order.preemption))}
                connection.execute(sa.update(jobs).where(jobs.c.id == job.id), values)
                news.append(progress_event(job))
                changed.append(job)
            insert_events(connection, news, now)
        self._events.announce()
        return changed

    def keep(self, job_ids: Sequence[int], *, now: float) -> Sequence[Job]:
        """Let jobs keep their place that were to be stopped and cannot be; return those that run on."""
        changed: list[Job] = []
        with self._database.write() as connection:
            for job_id in job_ids:
                row = connection.execute(SELECT_JOB, {"job_id": job_id}).first()
                if row is None or JobState(row.state) is not JobState.RUNNING or job_of(row).preemption is None:
                    continue
                job = replace(job_of(row), preemption=None, reason=_KEEPS)
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id), {**reason_values(job), "preempted_by": None})
                insert_events(connection, [progress_event(job)], now)
                changed.append(job)
        self._events.announce()
        return changed

    def resume(self, job_ids: Sequence[int], *, now: float) -> Sequence[Job]:
        """Give jobs that are stopped their devices again, each in a transaction of its own: the key of the leases decides."""
        return [job for job_id in job_ids if (job := self._resume(job_id, now)) is not None]

    def _resume(self, job_id: int, now: float) -> Job | None:
        try:
            with self._database.write() as connection:
                row = connection.execute(SELECT_JOB, {"job_id": job_id}).first()
                if row is None or not job_of(row).stopped:
                    return None
                job = replace(job_of(row), preemption=None, reason=_RESUMING)
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id), {**reason_values(job), "preempted_by": None})
                insert_leases(connection, job, now)
                insert_events(connection, [progress_event(job)], now)
        except IntegrityError:  # another job has one of its devices
            return None
        self._events.announce()
        return job

    def change(self, changes: Sequence[AttemptChange], *, now: float) -> Sequence[Job]:
        """Apply what is still true; news of an older attempt changes nothing."""
        changed: list[Job] = []
        with self._database.write() as connection:
            for change in changes:
                row = connection.execute(SELECT_JOB, {"job_id": change.job_id}).first()
                if row is None or row.attempt != change.attempt or JobState(row.state) not in _HOLDING:
                    continue
                changed.append(apply_change(connection, job_of(row), change, now))
        self._events.announce()
        return changed

    def request_cancel(
        self,
        job_id: int,
        *,
        by: str,
        reason: Reason,
        now: float,
        outbox: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = lambda _job, _task: (),
    ) -> Job | None:
        """A PENDING job becomes CANCELLED; of one that holds resources it is remembered who asked."""
        with self._database.write() as connection:
            row = connection.execute(_SELECT_JOB_AND_SPEC, {"job_id": job_id}).first()
            if row is None:
                return None
            job = job_of(row)
            if job.state is JobState.PENDING:
                job = replace(job, state=JobState.CANCELLED, reason=reason, ended_at=now, cancelled_by=by)
                _end_waiting(connection, job, row.spec, outbox, now)
            elif not job.state.ended and job.cancelled_by is None:
                job = replace(job, cancelled_by=by)
                connection.execute(sa.update(jobs).where(jobs.c.id == job_id).values(cancelled_by=by))
        self._events.announce()
        return job

    def fail(
        self, job_id: int, *, reason: Reason, now: float, outbox: Callable[[Job, TaskSpec], Sequence[OutboxEntry]]
    ) -> Job | None:
        """A PENDING job becomes FAILED for this reason, without an attempt; any other stays. Return it as it is afterwards."""
        with self._database.write() as connection:
            row = connection.execute(_SELECT_JOB_AND_SPEC, {"job_id": job_id}).first()
            if row is None:
                return None
            job = job_of(row)
            if job.state is JobState.PENDING:
                job = replace(job, state=JobState.FAILED, reason=reason, ended_at=now)
                _end_waiting(connection, job, row.spec, outbox, now)
        self._events.announce()
        return job

    def collect(self, job_id: int, attempt: int, files: Sequence[StoredFile], *, left: bool, message: str) -> Job:
        """Outputs of an attempt that is over were stored after its end. What is known by its path already stays as it is.

        `left`: something still is not stored. `message` takes the place of the job's.
        """
        with self._database.write() as connection:
            job = job_of(connection.execute(SELECT_JOB, {"job_id": job_id}).one())
            return collect_outputs(connection, job, attempt, files, left=left, message=message)

    def holders(self) -> Mapping[str, int]:
        """Which job holds which device now."""
        with self._database.read() as connection:
            return {row.device: row.job_id for row in connection.execute(sa.select(leases.c.device, leases.c.job_id))}

    def mend(self, now: float) -> int:
        """Correct moments and seconds that no clock shows: a job's own journal may have said them. Return in how many rows.

        What is said to be of the year 2255 or later is of `now`, and ten years of being stopped or charged are none.
        """
        mended = 0
        with self._database.write() as connection:
            for table in (jobs, attempts):
                limits = [(table.c[name], LATEST, now) for name in _MOMENTS if name in table.c]
                limits += [(table.c[name], LONGEST, 0.0) for name in _SECONDS if name in table.c]
                wrong = {
                    column: sa.or_(column > most, column < 0) for column, most, _ in limits
                }  # NaN is the largest (PostgreSQL)
                values = {column: sa.case((wrong[column], to), else_=column) for column, _, to in limits}
                mended += connection.execute(sa.update(table).where(sa.or_(*wrong.values())).values(values)).rowcount
        return mended

    def used(self, *, since: float) -> Sequence[Used]:
        """What the attempts that ended after `since` held, in the order of their ends."""
        query = (
            sa.select(
                jobs.c.account,
                jobs.c.owner,
                jobs.c.kind,
                (jobs.c.gpus * jobs.c.nodes).label("gpus"),
                (jobs.c.cpus * jobs.c.nodes).label("cpus"),
                attempts.c.node,
                attempts.c.leased_at,
                attempts.c.started_at,
                attempts.c.ended_at,
                attempts.c.lease_seconds,
                attempts.c.suspended_seconds,
            )
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(attempts.c.ended_at > since)
            .order_by(attempts.c.ended_at)
        )
        with self._database.read() as connection:
            return [
                Used(
                    account=row.account,
                    owner=row.owner,
                    kind=JobKind(row.kind),
                    gpus=row.gpus,
                    cpus=row.cpus,
                    # What waited in another queue had nothing until it started.
                    since=(row.started_at or row.ended_at) if read_cluster(row.node)[0] else row.leased_at,
                    until=row.ended_at,
                    lease_seconds=row.lease_seconds or 0.0,
                    suspended_seconds=row.suspended_seconds or 0.0,
                )
                for row in connection.execute(query)
            ]

    def charge(self, charges: Mapping[tuple[int, int], float]) -> None:
        """By job and attempt: what the cells of a session were charged in all. Fewer seconds than before change nothing."""
        with self._database.write() as connection:
            for (job_id, number), seconds in charges.items():
                charge_attempt(connection, job_id, number, seconds)


def _end_waiting(
    connection: sa.Connection, job: Job, spec: str, outbox: Callable[[Job, TaskSpec], Sequence[OutboxEntry]], now: float
) -> None:
    """Write down that a job has ended while it waited."""
    connection.execute(sa.update(jobs).where(jobs.c.id == job.id), ended_values(job))
    insert_events(connection, [state_event(job)], now)
    insert_entries(connection, job.id, outbox(job, from_plain(TaskSpec, json.loads(spec))), now)
