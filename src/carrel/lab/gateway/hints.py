"""What the owner of a job may want to change."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.control.ports import AttemptRow
from carrel.core.domain.job import Job
from carrel.core.domain.launch import LaunchLimits
from carrel.core.gpu_use import low_use


def hint_of(job: Job, attempts: Sequence[AttemptRow]) -> str:
    """What the owner of a job may want to change, from its last attempt; "" where there is nothing to say."""
    row = attempts[-1] if attempts else None
    if row is None or row.started_at is None or not row.usage.gpu_samples:
        return ""
    until = row.ended_at if row.ended_at is not None else row.started_at + row.usage.gpu_samples * LaunchLimits().sample
    return low_use(row.usage, job.resources, until - row.started_at - row.suspended_seconds)
