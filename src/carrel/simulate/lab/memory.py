"""The store of a simulated lab: what its scheduler needs remembered, as long as the simulation runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.news import after_stops
from carrel.core.control.ports import AttemptChange, AttemptRow, PreemptOrder, StartOrder, Used
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.task import TaskSpec

#: What every job of a trace does.
TASK = TaskSpec(entry_point="main", command="true", snapshot="")
_PLACED = Reason(code="Preparing", message="It has been given its devices.")


class MemoryStore:
    """Jobs and nothing else (`carrel.core.control.ports.SchedulerStore` and `EventLog`)."""

    def __init__(self) -> None:
        self._jobs: dict[int, Job] = {}

    def add(self, job: Job) -> None:
        """A job was submitted."""
        self._jobs[job.id] = job

    def active(self) -> Sequence[Job]:
        """All jobs that have not ended."""
        return tuple(self._jobs.values())

    def get(self, job_id: int) -> Job | None:
        """The job, while it has not ended."""
        return self._jobs.get(job_id)

    def elements(self, array_id: int, index: int | None = None) -> Sequence[Job]:  # noqa: ARG002
        """There are no arrays."""
        return ()

    def same_as(self, owner: str, key: str) -> Sequence[Job]:  # noqa: ARG002
        """Nothing is taken from a cache."""
        return ()

    def namesake(self, job: Job) -> Job | None:  # noqa: ARG002
        """Nobody asks for it."""
        return None

    def request_cancel(self, job_id: int, **_more: object) -> Job | None:
        """Nobody cancels anything."""
        return self._jobs.get(job_id)

    def fail(self, job_id: int, **_more: object) -> Job | None:
        """No input has to come from anywhere."""
        return self._jobs.get(job_id)

    def task(self, job_id: int) -> TaskSpec | None:
        """The same for all."""
        return TASK if job_id in self._jobs else None

    def attempt(self, job_id: int, number: int) -> AttemptRow | None:  # noqa: ARG002
        """Attempts are asked for after a restart, and there is none."""
        return None

    def start(self, orders: Sequence[StartOrder], *, now: float) -> Sequence[tuple[Job, TaskSpec]]:
        """PENDING becomes RUNNING at once: nothing takes time but the jobs."""
        started = []
        for order in orders:
            job = self._jobs[order.job_id]
            job = replace(
                job,
                state=JobState.RUNNING,
                reason=_PLACED,
                started_at=now,
                attempt=job.attempt + 1,
                node=order.node,
                devices=order.devices,
                others=order.others,
            )
            self._jobs[job.id] = job
            started.append((job, TASK))
        return started

    def change(self, changes: Sequence[AttemptChange], *, now: float) -> Sequence[Job]:  # noqa: ARG002
        """Apply what is still true; jobs that ended are not kept."""
        changed = []
        for change in changes:
            job = self._jobs.get(change.job_id)
            if job is None or job.attempt != change.attempt:
                continue
            job = replace(
                job,
                state=change.state or job.state,
                reason=change.reason or job.reason,
                started_at=job.started_at if change.started_at is None else change.started_at,
                ended_at=change.ended_at if change.state is not None and change.state.ended else None,
                retries_left=job.retries_left if change.retries_left is None else change.retries_left,
            )
            job = after_stops(job, change)
            if job.state.ended:
                del self._jobs[job.id]
            else:
                self._jobs[job.id] = job
            changed.append(job)
        return changed

    def preempt(self, orders: Sequence[PreemptOrder], *, now: float) -> Sequence[Job]:  # noqa: ARG002
        """Remember that these are preempted."""
        changed = []
        for order in orders:
            job = self._jobs.get(order.job_id)
            if job is not None and job.attempt == order.attempt and job.preemption is None:
                self._jobs[job.id] = job = replace(job, preemption=order.preemption, reason=order.reason)
                changed.append(job)
        return changed

    def keep(self, job_ids: Sequence[int], *, now: float) -> Sequence[Job]:  # noqa: ARG002
        """Every job can be stopped."""
        return ()

    def resume(self, job_ids: Sequence[int], *, now: float) -> Sequence[Job]:  # noqa: ARG002
        """These go on."""
        for job_id in job_ids:
            self._jobs[job_id] = replace(self._jobs[job_id], preemption=None)
        return [self._jobs[job_id] for job_id in job_ids]

    def used(self, *, since: float) -> Sequence[Used]:  # noqa: ARG002
        """Nothing, before the simulation."""
        return ()

    def append(self, events: Sequence[NewEvent], *, now: float) -> None:
        """Nobody reads them."""
