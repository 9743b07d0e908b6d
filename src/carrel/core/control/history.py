"""What a lab has learned from the jobs that ended before this server was started."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carrel.core.control.ports import JobFilter, JobStore
from carrel.core.domain.job import ENDED, Job, JobState
from carrel.core.domain.qos import JobKind
from carrel.core.gpu_use.habits import LOOKED_AT, Past
from carrel.core.policy.runtime import RunTimes

#: Jobs that are read again: what is older has been superseded.
REMEMBERED = 5000
_PAGE = 500
#: Endings that say how long such work runs. A job that was cancelled or lost would have gone on for nobody knows how long.
_TELLING = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY})


def newest_ended(jobs: JobStore, limit: int = REMEMBERED) -> Sequence[Job]:
    """The newest jobs that have ended, oldest first."""
    found: list[Job] = []
    before: int | None = None
    while len(found) < limit:
        page = jobs.list(JobFilter(states=ENDED), before=before, limit=min(_PAGE, limit - len(found)))
        found += page
        if len(page) < _PAGE:
            break
        before = page[-1].id
    return found[::-1]


def of_name(jobs: JobStore, owner: str, name: str) -> Sequence[Past]:
    """The last tasks of a user with this name that are over, the newest first, and what they took."""
    asked = JobFilter(owner=owner, name=name, kind=JobKind.TASK, states=ENDED)
    found = []
    for job in jobs.list(asked, before=None, limit=LOOKED_AT):
        row = jobs.attempt(job.id, job.attempt) if job.attempt else None
        if row is not None and row.started_at is not None and row.ended_at is not None:
            found.append(
                Past(
                    job=job.id,
                    state=job.state,
                    code=job.reason.code,
                    words=job.reason.message,
                    seconds=max(0.0, row.ended_at - row.started_at - row.suspended_seconds),
                    memory=row.usage.memory_peak,
                    gpu_memory=max(row.usage.gpu_memory_peak.values(), default=0),
                )
            )
    return found


def learn(run_times: RunTimes, jobs: Iterable[Job]) -> None:
    """Learn from tasks that have ended how long such jobs run. Sessions teach nothing: their users end them."""
    for job in jobs:
        if job.kind is JobKind.TASK and job.state in _TELLING and job.started_at is not None and job.ended_at is not None:
            ran = job.ended_at - job.started_at - job.suspended_seconds
            run_times.observe(job.owner, job.name, max(0.0, ran), job.resources.time)
