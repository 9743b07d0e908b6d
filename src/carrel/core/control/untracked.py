"""What a lab does that has no tracking server."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.comparison import Verification
from carrel.core.domain.job import Job
from carrel.core.domain.sweep import Sweep
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.user import User


def nothing_submitted(_job: Job, _task: TaskSpec, _user: User) -> Sequence[OutboxEntry]:
    """A lab without tracking has nobody to tell."""
    return ()


def nothing_of_sweeps(_job: Job, _task: TaskSpec, _sweep: Sweep) -> Sequence[OutboxEntry]:
    """A lab without tracking has nobody to tell."""
    return ()


def nothing_refused(_job_id: int) -> Sequence[str]:
    """A lab without tracking is refused nothing."""
    return ()


def nothing_withdrawn(_job: Job, _task: TaskSpec) -> Sequence[OutboxEntry]:
    """A lab without tracking has nobody to tell."""
    return ()


def nothing_verified(_job: Job, _task: TaskSpec, _verification: Verification) -> Sequence[OutboxEntry]:
    """Nothing to tell about a job that was repeated."""
    return ()
