"""Rows to values and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Row

from carrel.core.control.event_ports import Event
from carrel.core.control.ports import AttemptRow
from carrel.core.domain.array import ArrayElement
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import Usage
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources
from carrel.core.domain.serial import from_plain
from carrel.core.domain.visible import Visible


def dump(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"))


def job_of(row: Row[Any]) -> Job:
    """The job in a row of `tables.jobs`."""
    return Job(
        id=row.id,
        kind=JobKind(row.kind),
        owner=row.owner,
        account=row.account,
        name=row.name,
        qos=row.qos,
        partition=row.partition,
        resources=Resources(
            nodes=row.nodes,
            cpus=row.cpus,
            memory=row.memory,
            gpus=row.gpus,
            gpu_type=row.gpu_type,
            gpu_memory=row.gpu_memory,
            time=row.time,
        ),
        state=JobState(row.state),
        reason=Reason(code=row.reason, message=row.message),
        submitted_at=row.submitted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempt=row.attempt,
        retries_left=row.retries_left,
        requeues_left=row.requeues_left,
        exit_code=row.exit_code,
        signal=row.signal,
        node=row.node,
        devices=tuple(json.loads(row.devices)),
        run_id=row.run_id,
        cancelled_by=row.cancelled_by,
        dependency=row.dependency,
        element=None
        if row.array_job_id is None
        else ArrayElement(array_id=row.array_job_id, index=row.array_task_id, array=row.array_spec),
        preemptible=bool(row.preemptible),
        visible=Visible(row.visible),
        stage_in=bool(row.stage_in),
        parent=row.parent,
        pipeline=row.pipeline,
        preemption=None if row.preempted_by is None else from_plain(Preemption, json.loads(row.preempted_by)),
        suspended_seconds=row.suspended_seconds,
        suspended_at=row.suspended_at,
        pauses=row.pauses,
        pause_people=row.pause_people,
    )


def attempt_of(row: Row[Any]) -> AttemptRow:
    """The attempt in a row of `tables.attempts`."""
    return AttemptRow(
        job_id=row.job_id,
        number=row.number,
        node=row.node,
        devices=tuple(json.loads(row.devices)),
        state=JobState(row.state),
        reason=Reason(code=row.reason, message=row.message),
        exit_code=row.exit_code,
        signal=row.signal,
        leased_at=row.leased_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        journal_offset=row.journal_offset,
        log_size=row.log_size,
        environment=row.environment,
        environment_lock=row.environment_lock,
        environment_built=None if row.environment_built is None else bool(row.environment_built),
        python=row.python,
        hardware=json.loads(row.hardware),
        seeds=json.loads(row.seeds),
        inputs=json.loads(row.inputs),
        input_sources=json.loads(row.input_sources),
        usage=from_plain(Usage, json.loads(row.usage)),
        lease_seconds=row.lease_seconds or 0.0,
        suspended_seconds=row.suspended_seconds or 0.0,
        uncollected=bool(row.uncollected),
    )


def event_of(row: Row[Any]) -> Event:
    """The event in a row of `tables.events`."""
    data: Mapping[str, Any] = json.loads(row.data)
    return Event(id=row.id, at=row.at, job_id=row.job_id, owner=row.owner, type=row.type, data=data)
