"""Carrying out that jobs are preempted by others, and that those that were stopped go on.

What was decided is written down before the engine hears of it, as starts are: the server that takes over from one that was killed
tells the engine again, and telling it twice does no harm. A job that is preempted keeps its place until its runner has said that
it is out, so nothing is ever given twice; placement counts on the place from the moment at which it is free at the latest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from carrel.core.control.movable import Movable
from carrel.core.control.parents import WaitingParents
from carrel.core.control.ports import PreemptOrder, SchedulerStore
from carrel.core.control.queue import Queue
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Job, Preemption, Reason
from carrel.core.domain.placement import Holding, Preempt, Snapshot, Waiting
from carrel.core.domain.ports import Engine
from carrel.core.domain.qos import PreemptMode
from carrel.core.domain.units import format_duration
from carrel.core.policy.preempt import next_exemption, resumable

_log = logging.getLogger(__name__)


class Preempting:
    """Makes room for those who may take from others. Used by the loop's thread."""

    def __init__(self, jobs: SchedulerStore, engine: Engine, queue: Queue, parents: WaitingParents) -> None:
        self._jobs = jobs
        self._engine = engine
        self._queue = queue
        self._parents = parents
        self._movable = Movable(queue, engine.gpu_state)
        #: When time alone is a reason to look again, or None.
        self.again_at: float | None = None

    def make_room(self, takers: Sequence[Waiting], picture: Callable[[], Snapshot], now: float) -> Sequence[Job]:
        """Preempt jobs for `takers`, who were promised a place, and whose classes preempt others, whose parents wait for them,
        or who need GPUs that others hold who wait; return those that are preempted, or run on since they cannot be suspended
        after all."""
        self.again_at = None
        if stuck := self._movable.stuck(now):
            self.again_at = now  # then they are requeued for those who need their place
            return self._told(self._jobs.keep(stuck, now=now))
        for waiting in takers:
            seen = picture()
            parent = self._parents.of(waiting.id)
            idle = self._parents.idle(now) if waiting.resources.total_gpus else frozenset[int]()
            decided = self._movable.decide(seen, waiting, now, parent=parent, idle=idle)
            if decided:
                # The picture is another one now: the next cycle looks at the others.
                return self._told(self._jobs.preempt([self._order(one, seen, now) for one in decided], now=now))
            self._look_again(next_exemption(seen, waiting, now))
        self._look_again(self._movable.again_at(now))
        return ()

    def _look_again(self, moment: float | None) -> None:
        if moment is not None and (self.again_at is None or moment < self.again_at):
            self.again_at = moment

    def go_on(self, picture: Snapshot, now: float) -> Sequence[Job]:
        """Let jobs go on that were stopped, where that is possible now; return them as they are now."""
        stopped = [job for job_id in sorted(self._queue.holding) if (job := self._queue.job(job_id)) is not None and job.stopped]
        stopped = [job for job in stopped if not self._waits(job)]
        # Those that were submitted first; the id settles ties.
        stopped.sort(key=lambda job: (job.submitted_at, job.id))
        going = resumable(picture, [self._whole(job, now) for job in stopped], now)
        return self._told(self._jobs.resume(going, now=now)) if going else ()

    def _waits(self, job: Job) -> bool:
        """True of a parent whose child is not over: it would wait as well if it went on."""
        child = None if job.preemption is None else job.preemption.waits_for
        return child is not None and self._queue.job(child) is not None

    def _told(self, changed: Sequence[Job]) -> Sequence[Job]:
        for job in changed:
            self.tell(job)
        return changed

    def tell(self, job: Job) -> None:
        """Tell the engine what is written down about the job."""
        try:
            self._engine.preempt(job.id, job.attempt, job.preemption)
        except (CarrelError, OSError):
            # The engine gets it again when the server is started again; until then the job keeps its place.
            _log.exception("Job %d could not be preempted.", job.id)

    def _order(self, one: Preempt, picture: Snapshot, now: float) -> PreemptOrder:
        job = self._queue.job(one.job_id)
        assert job is not None  # the picture is made from the queue
        service = picture.qos[job.qos]
        waits = self._parents.of(one.by) == job.id
        idle = not waits and one.mode is PreemptMode.SUSPEND and job.id in self._parents.idle(now)
        child = self._parents.child_of(job.id) if idle else None
        preemption = Preemption(
            mode=one.mode, by=one.by, qos=one.qos, at=now, grace=service.preempt_grace, waits=waits, child=child
        )
        falls_back = service.preempt_mode is PreemptMode.SUSPEND and one.mode is PreemptMode.REQUEUE
        stays = self._movable.why_requeued(job) if falls_back else ""
        return PreemptOrder(
            job_id=job.id,
            attempt=job.attempt,
            preemption=preemption,
            reason=Reason(code="Preempting", message=_message(preemption, stays, job.place_in_words)),
        )

    def _whole(self, job: Job, now: float) -> Holding:
        """What a job that is stopped would hold if it went on now."""
        left = (job.started_at or now) + job.suspended_seconds + job.resources.time - (job.suspended_at or now)
        ends_by = now + left + self._queue.grace
        return replace(self._queue.holding[job.id], resources=job.resources, devices=job.devices, ends_by=ends_by)


def _message(preemption: Preemption, stays: str, place: str) -> str:
    """What the owner of a job that is preempted reads.

    `stays`: why it cannot be suspended, "" where its class does not want that. `place`: what the other job gets.
    """
    if preemption.waits_for == preemption.by:
        return f"Job {preemption.by}, which this job submitted and waits for, takes its {place} until it ends."
    taker = f'Job {preemption.by} of QoS "{preemption.qos}" takes this job\'s {place}.'
    if preemption.waits_for is not None:
        goes_on = f"resumes by itself when job {preemption.waits_for}, for which it waits, has ended and they are free"
        return f"{taker} This job is stopped, and {goes_on}."
    if preemption.mode is PreemptMode.SUSPEND:
        return f"{taker} This job is stopped, and resumes by itself when they are free."
    ends = f"This job has {format_duration(preemption.grace)} to end, and goes back to the queue."
    if not stays:
        return f"{taker} {ends}"
    why = f"This job cannot be stopped and resumed here: {stays.rstrip('.')}."
    return f"{taker} {why} {ends} What it writes into $CARREL_CHECKPOINT_DIR is there when it starts again."
