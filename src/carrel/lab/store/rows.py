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


def same(kind: type, row: Row[Any]) -> dict[str, Any]:
    """The values of those columns that have the name of a field of `kind`."""
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: value for name, value in row._mapping.items() if name in names}


def job_of(row: Row[Any]) -> Job:
    """The job in a row of `tables.jobs`."""
    found = same(Job, row) | {
        "kind": JobKind(row.kind),
        "resources": Resources(**same(Resources, row)),
        "state": JobState(row.state),
        "reason": Reason(code=row.reason, message=row.message),
        "devices": tuple(json.loads(row.devices)),
        "preemptible": bool(row.preemptible),
        "visible": Visible(row.visible),
        "stage_in": bool(row.stage_in),
        "preemption": None if row.preempted_by is None else from_plain(Preemption, json.loads(row.preempted_by)),
    }
    if row.array_job_id is not None:
        found["element"] = ArrayElement(array_id=row.array_job_id, index=row.array_task_id, array=row.array_spec)
    return Job(**found)


def attempt_of(row: Row[Any]) -> AttemptRow:
    """The attempt in a row of `tables.attempts`."""
    read = {name: json.loads(getattr(row, name)) for name in ("hardware", "seeds", "inputs", "input_sources", "usage")}
    found = same(AttemptRow, row) | {
        **read,
        "devices": tuple(json.loads(row.devices)),
        "state": JobState(row.state),
        "reason": Reason(code=row.reason, message=row.message),
        "environment_built": None if row.environment_built is None else bool(row.environment_built),
        "usage": from_plain(Usage, read["usage"]),
        "lease_seconds": row.lease_seconds or 0.0,
        "suspended_seconds": row.suspended_seconds or 0.0,
        "uncollected": bool(row.uncollected),
    }
    return AttemptRow(**found)


def event_of(row: Row[Any]) -> Event:
    """The event in a row of `tables.events`."""
    data: Mapping[str, Any] = json.loads(row.data)
    return Event(**{**same(Event, row), "data": data})
