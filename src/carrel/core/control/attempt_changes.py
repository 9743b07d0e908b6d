"""What observations of attempts change, and how these changes are written down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from carrel.core.control.news import DEVICE_FAULT, OFTEN, interpret, misfortune
from carrel.core.control.ports import AttemptChange, OutboxEntry, SchedulerStore
from carrel.core.control.queue import Queue
from carrel.core.control.usage import UsageBook
from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Observation
from carrel.core.domain.task import TaskSpec

_log = logging.getLogger(__name__)

#: What there is to tell the tracking server about a change: (job before, its task, the change) -> entries.
Describe = Callable[[Job, TaskSpec, AttemptChange, Observation], Sequence[OutboxEntry]]


class AttemptChanges:
    """Makes a change of each observation that the queue awaits, and writes changes down."""

    def __init__(
        self,
        jobs: SchedulerStore,
        queue: Queue,
        use: UsageBook,
        describe: Describe | None,
        fault: Callable[[Sequence[str], float], str],
    ) -> None:
        """`fault` as in the settings of the loop."""
        self._jobs = jobs
        self._fault = fault
        self._queue = queue
        self._use = use
        self._describe = describe
        #: Descriptions of jobs that hold resources, for those who report on them.
        self._tasks: dict[int, TaskSpec] = {}

    def awaited(self, observation: Observation) -> Job | None:
        """The job that the observation is about, unless it is late, repeated or of an attempt that is over."""
        job = self._queue.job(observation.job_id)
        if job is None or job.attempt != observation.attempt or not job.state.holds_resources:
            return None
        if observation.beside:
            return job if job.state is JobState.CONFIGURING else None
        if observation.entries and observation.offset <= self._queue.known(job.id).offset:
            return None
        return job

    def forget(self, job_id: int) -> None:
        """The job has ended: its description is not needed any more."""
        self._tasks.pop(job_id, None)

    def all_of(
        self, fresh: Sequence[tuple[Job, Observation]], now: float
    ) -> tuple[Sequence[tuple[Job, Observation]], Sequence[AttemptChange]]:
        """The changes that observations make, and these observations. One that makes none by a defect costs its own job alone."""
        understood, changes = [], []
        for job, observation in fresh:
            try:
                changes.append(self.of(job, observation, now))
            except CarrelError:
                raise
            except Exception:  # noqa: BLE001 - the news of all others must not be lost with it
                _log.exception("Job %d: news of attempt %d is not understood and is dropped.", job.id, job.attempt)
            else:
                understood.append((job, observation))
        return understood, changes

    def of(self, job: Job, observation: Observation, now: float) -> AttemptChange:
        """The change that the observation of the job makes, with what there is to tell the tracking server."""
        fault = self._fault(job.devices, job.started_at or job.submitted_at) if job.devices else ""
        unlucky = self._unlucky(job, observation, fault)
        size = self._queue.known(job.id).log_size
        change = interpret(job, observation, log_size=size, now=now, unlucky=unlucky, fault=fault)
        if change.ended_at is not None:
            change = replace(change, lease_seconds=self._use.charged(job.id, job.attempt))
        if self._describe is None:
            return change
        task = self._tasks.get(job.id) or self._jobs.task(job.id)
        if task is None:  # pragma: no cover - a foreign key forbids it
            return change
        self._tasks[job.id] = task
        return replace(change, outbox=tuple(self._describe(job, task, change, observation)))

    def _unlucky(self, job: Job, observation: Observation, fault: str) -> int:
        """How many attempts in a row before the present one came to its end, where that is not the job's fault; a few at most."""
        code, count = misfortune(observation) or (DEVICE_FAULT if fault else ""), 0
        while code and count < OFTEN and (row := self._jobs.attempt(job.id, job.attempt - 1 - count)) is not None:
            if row.reason.code != code or (observation.unbegun and row.started_at is not None):
                break
            count += 1
        return count

    def write(self, changes: Sequence[AttemptChange], now: float) -> Sequence[Job]:
        """Write changes down, one by one where all together are refused; return the jobs as they are afterwards."""
        if not changes:
            return ()
        try:
            return self._jobs.change(changes, now=now)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001 - one change that no database takes must not cost the others
            _log.exception("A batch of %d changes was refused; they are written one by one.", len(changes))
        written: list[Job] = []
        for change in changes:
            try:
                written.extend(self._jobs.change([change], now=now))
            except Unavailable:
                raise
            except Exception:  # noqa: BLE001
                _log.exception("Job %d: a change was refused and is dropped: %r", change.job_id, change)
        return written


def not_started(job: Job, state: JobState, reason: Reason, now: float) -> AttemptChange:
    """The change when the engine has started nothing: the attempt is over, and the job is in `state`."""
    return AttemptChange(
        job_id=job.id,
        attempt=job.attempt,
        state=state,
        attempt_state=JobState.NODE_FAIL if state is JobState.PENDING else state,
        reason=reason,
        ended_at=now,
    )
