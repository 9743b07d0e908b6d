"""Jobs that are new: their rows, and the keys under which they were submitted."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from carrel.core.control.ports import NewJob
from carrel.core.domain.array import ArrayElement
from carrel.core.domain.dependency import describe_dependency, read_dependency
from carrel.core.domain.errors import Conflict
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import TrackingTarget
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import jobs, submissions

_SUBMITTED = Reason(code="Submitted", message="Accepted; it is about to be placed.")

# Statements of the hot path, built once: SQLAlchemy then only binds parameters.
_INSERT_JOB = sa.insert(jobs).returning(jobs.c.id)
_INSERT_IN_ORDER = sa.insert(jobs).returning(jobs.c.id, sort_by_parameter_order=True)


def submitted_before(connection: sa.Connection, owner: str, key: str, request: str) -> int | None:
    """Return the job that the owner has submitted with this key. Raises `Conflict` when it asked for something else."""
    row = connection.execute(sa.select(submissions).where(submissions.c.owner == owner, submissions.c.key == key)).first()
    if row is None:
        return None
    if row.request != request:
        raise Conflict(
            f'The idempotency key "{key}" was used for job {row.job_id}, which asked for something else.',
            remedy="Use a new key for a new request.",
        )
    return int(row.job_id)


def insert_jobs(connection: sa.Connection, new: NewJob, now: float) -> tuple[Job, ...]:
    """Write the job down, or the jobs of an array, whose number is that of the first."""
    row = _job_row(new, now)
    if not new.array:
        return (_job_as_submitted(new, connection.execute(_INSERT_JOB, row).scalar_one(), now),)
    first = connection.execute(_INSERT_JOB, row).scalar_one()
    elements = [ArrayElement(array_id=first, index=index, array=new.array) for index in new.indices]
    values = [{"array_job_id": first, "array_task_id": element.index, "array_spec": element.array} for element in elements]
    connection.execute(sa.update(jobs).where(jobs.c.id == first), values[0])
    numbers = [first]
    if values[1:]:
        found = connection.execute(_INSERT_IN_ORDER, [{**row, **element} for element in values[1:]])
        numbers += found.scalars()
    return tuple(_job_as_submitted(new, number, now, element) for number, element in zip(numbers, elements, strict=True))


def _first_reason(new: NewJob) -> Reason:
    if not new.dependency:
        return _SUBMITTED
    return Reason(code="Dependency", message=describe_dependency(read_dependency(new.dependency)))


def _run_of(new: NewJob) -> TrackingTarget | None:
    """The run that the job takes over. Each element of an array has one of its own instead."""
    return None if new.array else new.task.tracking


def _job_row(new: NewJob, now: float) -> dict[str, Any]:
    tracking = _run_of(new)
    return {
        "kind": new.kind.value,
        "owner": new.owner,
        "account": new.account,
        "name": new.name,
        "qos": new.qos,
        "partition": new.partition,
        "nodes": new.resources.nodes,
        "cpus": new.resources.cpus,
        "memory": new.resources.memory,
        "gpus": new.resources.gpus,
        "gpu_type": new.resources.gpu_type,
        "gpu_memory": new.resources.gpu_memory,
        "time": new.resources.time,
        "compose": new.resources.compose,
        "state": JobState.PENDING.value,
        "reason": _first_reason(new).code,
        "message": _first_reason(new).message,
        "submitted_at": now,
        "retries_left": new.retries,
        "requeues_left": new.task.requeue,
        "dependency": new.dependency,
        "preemptible": int(new.preemptible),
        "visible": new.visible.value,
        "stage_in": int(new.stage_in),
        "parent": new.parent,
        "cache_key": new.cache_key,
        "pipeline": new.pipeline,
        "spec": dump(to_plain(new.task)),
        "run_id": tracking.run_id if tracking else None,
        "experiment": new.task.experiment or "",
        "experiment_id": tracking.experiment_id if tracking else None,
    }


def _job_as_submitted(new: NewJob, job_id: int, now: float, element: ArrayElement | None = None) -> Job:
    said = {one.name: getattr(new, one.name) for one in fields(Job) if hasattr(new, one.name)}
    found = said | {
        "id": job_id,
        "state": JobState.PENDING,
        "reason": _first_reason(new),
        "submitted_at": now,
        "retries_left": new.retries,
        "requeues_left": new.task.requeue,
        "element": element,
        "run_id": tracking.run_id if (tracking := _run_of(new)) else None,
    }
    return Job(**found)
