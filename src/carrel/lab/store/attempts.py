"""What becomes of a job and its attempts, written down: one transaction of the caller's, and only what is still true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from carrel.core.control.news import after_stops, state_event
from carrel.core.control.ports import AttemptChange
from carrel.core.control.submit_limits import is_refused
from carrel.core.domain.job import Job, JobState, check_transition
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.serial import to_plain
from carrel.core.gpu_use import gpus_of, measured
from carrel.lab.store.events import insert_events
from carrel.lab.store.outbox import insert_entries
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import attempts, jobs, leases, outputs


def started_values(job: Job) -> dict[str, Any]:
    """What a job's row says once an attempt has been started."""
    return {
        "state": job.state.value,
        "reason": job.reason.code,
        "message": job.reason.message,
        "attempt": job.attempt,
        "node": job.node,
        "devices": dump(list(job.devices)),
        "exit_code": None,
        "signal": None,
        "started_at": None,
    }


def reason_values(job: Job) -> dict[str, Any]:
    """What a job's row says when its reason alone is another one."""
    return {"reason": job.reason.code, "message": job.reason.message}


def insert_leases(connection: sa.Connection, job: Job, now: float) -> None:
    """Lend its devices to a job. The key of the table refuses a device that is lent: then it raises `IntegrityError`."""
    if job.devices:
        rows = [{"device": uuid, "job_id": job.id, "attempt": job.attempt, "since": now} for uuid in job.devices]
        connection.execute(sa.insert(leases), rows)


def attempt_row(job: Job, now: float) -> dict[str, Any]:
    """The row of an attempt that is about to be started."""
    return {
        "job_id": job.id,
        "number": job.attempt,
        "node": job.node,
        "devices": dump(list(job.devices)),
        "state": job.state.value,
        "reason": job.reason.code,
        "message": job.reason.message,
        "leased_at": now,
    }


def ended_values(job: Job) -> dict[str, Any]:
    """What a job's row says once it is over without an attempt that could say so."""
    return {
        "state": job.state.value,
        "reason": job.reason.code,
        "message": job.reason.message,
        "ended_at": job.ended_at,
        "cancelled_by": job.cancelled_by,
    }


def apply_change(connection: sa.Connection, job: Job, change: AttemptChange, now: float) -> Job:
    """Write one change; the caller has checked that the attempt is the job's own."""
    values: dict[str, Any] = {}
    after = job
    if change.state is not None and change.reason is not None:
        if change.state is not job.state:
            check_transition(job.id, job.state, change.state, job.reason.message)
        over = change.ended_at is not None
        after = replace(
            job,
            state=change.state,
            reason=change.reason,
            started_at=change.started_at if change.started_at is not None else job.started_at,
            ended_at=change.ended_at if change.state.ended else None,
            exit_code=change.exit_code,
            signal=change.signal,
            retries_left=job.retries_left if change.retries_left is None else change.retries_left,
            requeues_left=job.requeues_left if change.requeues_left is None else change.requeues_left,
            devices=() if over and not change.state.ended else job.devices,
        )
        after = after_stops(after, change)
        values = {
            "state": after.state.value,
            "reason": after.reason.code,
            "message": after.reason.message,
            "started_at": after.started_at,
            "ended_at": after.ended_at,
            "exit_code": after.exit_code,
            "signal": after.signal,
            "retries_left": after.retries_left,
            "requeues_left": after.requeues_left,
            "preempted_by": None if after.preemption is None else dump(to_plain(after.preemption)),
            "suspended_at": after.suspended_at,
            "suspended_seconds": after.suspended_seconds,
            "pauses": after.pauses,
            "pause_people": after.pause_people,
        }
        connection.execute(sa.update(jobs).where(jobs.c.id == job.id), values)
        if over or after.stopped:
            connection.execute(sa.delete(leases).where(leases.c.job_id == job.id))
    attempt_values = _attempt_values(change)
    if change.ended_at is not None and is_refused(after):
        # Slurm never had it: nothing of it is worth keeping, and there may be one a minute. Its number is not used again.
        connection.execute(sa.delete(attempts).where(attempts.c.job_id == job.id, attempts.c.number == change.attempt))
    elif attempt_values:
        connection.execute(
            sa.update(attempts).where(attempts.c.job_id == job.id, attempts.c.number == change.attempt), attempt_values
        )
    if change.lease_seconds is not None:
        charge_attempt(connection, job.id, change.attempt, change.lease_seconds)
    if change.outputs:
        rows = [{"job_id": job.id, "attempt": change.attempt, **to_plain(file)} for file in change.outputs]
        connection.execute(sa.insert(outputs), rows)
    # RUNNING is reported by the entry that started it (`control.news`), which may be in one batch with the end.
    news = [state_event(after)] if after.state is not job.state and after.state is not JobState.RUNNING else []
    insert_events(connection, [*change.events, *news], now)
    insert_entries(connection, job.id, change.outbox, now)
    return after


def _attempt_values(change: AttemptChange) -> dict[str, Any]:
    state = change.attempt_state or change.state
    reason = change.attempt_reason or change.reason
    values: dict[str, Any] = {
        "state": None if state is None else state.value,
        "reason": None if reason is None else reason.code,
        "message": None if reason is None else reason.message,
        "exit_code": change.exit_code,
        "signal": change.signal,
        "started_at": change.started_at,
        "ended_at": change.ended_at,
        "suspended_seconds": change.suspended_seconds,
        "journal_offset": change.offset,
        "log_size": change.log_size,
        "environment": change.environment,
        "environment_lock": change.environment_lock,
        "environment_built": None if change.environment_built is None else int(change.environment_built),
        "python": change.python,
        "hardware": None if change.hardware is None else dump(dict(change.hardware)),
        "seeds": None if change.seeds is None else dump(dict(change.seeds)),
        "inputs": None if change.inputs is None else dump(dict(change.inputs)),
        "input_sources": None if change.input_sources is None else dump(dict(change.input_sources)),
        "usage": None if change.usage is None else dump(to_plain(change.usage)),
        "advice": change.advice,
        **({} if change.usage is None else measured(change.usage)),
        **({} if change.hardware is None else gpus_of(change.hardware)),
        "uncollected": None if change.uncollected is None else int(change.uncollected),
    }
    return {name: value for name, value in values.items() if value is not None}


def charge_attempt(connection: sa.Connection, job_id: int, number: int, seconds: float) -> None:
    """What is written last need not have been counted last: fewer seconds than are known change nothing."""
    fewer = sa.or_(attempts.c.lease_seconds.is_(None), attempts.c.lease_seconds < seconds)
    where = (attempts.c.job_id == job_id, attempts.c.number == number, fewer)
    connection.execute(sa.update(attempts).where(*where), {"lease_seconds": seconds})


def collect_outputs(
    connection: sa.Connection, job: Job, number: int, files: Sequence[StoredFile], *, left: bool, message: str
) -> Job:
    """Outputs of an attempt that is over were stored after its end; what is known by its path already stays as it is."""
    here = (outputs.c.job_id == job.id, outputs.c.attempt == number)
    known = set(connection.execute(sa.select(outputs.c.path).where(*here)).scalars())
    rows = [{"job_id": job.id, "attempt": number, **to_plain(file)} for file in files if file.path not in known]
    if rows:
        connection.execute(sa.insert(outputs), rows)
    connection.execute(
        sa.update(attempts).where(attempts.c.job_id == job.id, attempts.c.number == number),
        {"uncollected": int(left), "message": message},
    )
    connection.execute(sa.update(jobs).where(jobs.c.id == job.id), {"message": message})
    return replace(job, reason=replace(job.reason, message=message))
