"""Carrying out that jobs are preempted by others, and that those that were stopped go on.

What was decided is written down before the engine hears of it, as starts are: the server that takes over from one that was killed
tells the engine again, and telling it twice does no harm. A job that is preempted keeps its place until its runner has said that
it is out, so nothing is ever given twice; placement counts on the place from the moment at which it is free at the latest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.news import progress_event
from carrel.core.control.parents import WaitingParents
from carrel.core.control.ports import PreemptOrder, SchedulerStore, StartOrder
from carrel.core.control.queue import Queue, ran_for
from carrel.core.control.rotating import Rotating
from carrel.core.domain.errors import CarrelError
from carrel.core.domain.job import Job, Preemption, Reason
from carrel.core.domain.placement import Holding, Preempt, Snapshot, Start, Waiting
from carrel.core.domain.ports import Engine
from carrel.core.domain.qos import PreemptMode, QoS
from carrel.core.domain.units import format_duration
from carrel.core.policy.preempt import next_exemption, preempt, resumable
from carrel.core.policy.rotation import Turn

_log = logging.getLogger(__name__)


class Preempting:
    """Makes room for those who may take from others. Used by the loop's thread."""

    def __init__(self, jobs: SchedulerStore, engine: Engine, queue: Queue, parents: WaitingParents) -> None:
        self._jobs = jobs
        self._engine = engine
        self._queue = queue
        self._parents = parents
        self._rotating = Rotating(queue, lambda: engine.gpu_state().tasks)
        #: What was said of jobs that keep their place although their turn is over.
        self._said: dict[int, str] = {}
        #: When time alone is a reason to look again, or None.
        self.again_at: float | None = None

    def make_room(self, takers: Sequence[Waiting], picture: Callable[[], Snapshot], now: float) -> Sequence[Job]:
        """Preempt jobs for `takers`, who were promised a place and whose classes preempt others, or whose parents wait for
        them; return those that are preempted."""
        self.again_at = None
        for waiting in takers:
            seen = picture()
            decided = preempt(seen, waiting, now, parent=self._parents.of(waiting.id))
            if not decided:
                moment = next_exemption(seen, waiting, now)
                if moment is not None and (self.again_at is None or moment < self.again_at):
                    self.again_at = moment
                continue
            return self._give_way(decided, seen, now)  # the picture is another one now: the next cycle looks at the others
        return ()

    def take_turns(self, promised: Sequence[Waiting], picture: Callable[[], Snapshot], now: float) -> Sequence[Job]:
        """Stop jobs of classes that rotate for those who have had less and were promised a place; return those that changed.

        After `make_room`.
        """
        if kept := self._rotating.kept():
            return self._keep(kept, now)
        seen = picture()
        decided, moment = self._rotating.choose(seen, promised, now)
        if moment is not None:
            self.again_at = moment if self.again_at is None else min(moment, self.again_at)
        return self._give_way(decided, seen, now) if decided else ()

    def turns(self, qos: Mapping[str, QoS], now: float) -> Sequence[Turn]:
        """The jobs that run in classes that rotate, as they are now."""
        return self._rotating.turns(qos, now)

    def keeps(self) -> Sequence[NewEvent]:
        """What is new of jobs whose turn is over and whose GPU state cannot be moved: for their owners."""
        said, self._said = self._said, self._rotating.stays
        jobs = [job for job_id, why in self._said.items() if said.get(job_id) != why and (job := self._queue.job(job_id))]
        return [progress_event(replace(job, reason=_keeps(self._said[job.id]))) for job in jobs]

    def _keep(self, kept: Sequence[Job], now: float) -> Sequence[Job]:
        """These are not stopped after all."""
        changed = self._jobs.keep([job.id for job in kept], now=now)
        for job in changed:
            self.tell(job)
        return changed

    def _give_way(self, decided: Sequence[Preempt], picture: Snapshot, now: float) -> Sequence[Job]:
        changed = self._jobs.preempt([self._order(one, picture, now) for one in decided], now=now)
        for job in changed:
            self.tell(job)
        return changed

    def go_on(self, picture: Snapshot, now: float) -> Sequence[Job]:
        """Let jobs go on that were stopped, where that is possible now; return them as they are now."""
        stopped = [job for job_id in sorted(self._queue.holding) if (job := self._queue.job(job_id)) is not None and job.stopped]
        stopped = [job for job in stopped if not self._waits(job)]
        # Those that were submitted first; the id settles ties.
        stopped.sort(key=lambda job: (job.submitted_at, job.id))
        going = resumable(picture, [self._whole(job, now) for job in stopped], now)
        changed = self._jobs.resume(going, now=now) if going else ()
        for job in changed:
            self.tell(job)
        return changed

    def _waits(self, job: Job) -> bool:
        """True of a parent whose child is not over: it would wait as well if it went on."""
        return job.preemption is not None and job.preemption.waits and self._queue.job(job.preemption.by) is not None

    def go_on_at(self, start: Start, now: float) -> Job | None:
        """Let a job go on that waited in line for its next turn, where placement says; None: it does not wait any more."""
        order = StartOrder(job_id=start.job_id, node=start.node, devices=start.devices, others=start.others)
        job = self._jobs.go_on(order, now=now)
        if job is not None:
            self._rotating.goes_on(job.id, now)
            self.tell(job)
        return job

    def tell(self, job: Job) -> None:
        """Tell the engine what is written down about the job."""
        try:
            self._engine.preempt(job.id, job.attempt, job.preemption, devices=job.devices if job.preemption is None else ())
        except (CarrelError, OSError):
            # The engine gets it again when the server is started again; until then the job keeps its place.
            _log.exception("Job %d could not be preempted.", job.id)

    def _order(self, one: Preempt, picture: Snapshot, now: float) -> PreemptOrder:
        job = self._queue.job(one.job_id)
        assert job is not None  # the picture is made from the queue
        service = picture.qos[job.qos]
        waits = self._parents.of(one.by) == job.id
        preemption = Preemption(mode=one.mode, by=one.by, qos=one.qos, at=now, grace=service.preempt_grace, waits=waits)
        return PreemptOrder(
            job_id=job.id,
            attempt=job.attempt,
            preemption=preemption,
            reason=Reason(code="Preempting", message=_message(job, preemption, service.preempt_mode)),
        )

    def _whole(self, job: Job, now: float) -> Holding:
        """What a job that is stopped would hold if it went on now."""
        left = (job.started_at or now) + job.suspended_seconds + job.resources.time - (job.suspended_at or now)
        ends_by = now + left + self._queue.grace
        return replace(self._queue.holding[job.id], resources=job.resources, devices=job.devices, ends_by=ends_by)


def _keeps(why: str) -> Reason:
    text = f"Its turn is over and others wait, but it keeps its GPUs: {why}. What the lab can move is in docs/lending.md."
    return Reason(code="Running", message=text)


def _message(job: Job, preemption: Preemption, wanted: PreemptMode) -> str:
    if preemption.waits:
        return f"It waits for job {preemption.by}, which it submitted, and gives its place to it until that is over."
    if preemption.qos == job.qos:
        ran = format_duration(ran_for(job, preemption.at))
        return (
            f"It has run for {ran}, and job {preemption.by} of its QoS has had less: it is stopped and waits for its next turn."
        )
    taker = f'A job of QoS "{preemption.qos}" takes its place'
    if preemption.mode is PreemptMode.SUSPEND:
        return f"{taker}; it is stopped and goes on when that is free again."
    why = "; it cannot be stopped here" if wanted is PreemptMode.SUSPEND else ""
    return f"{taker}{why}; it has {format_duration(preemption.grace)} to end, and goes back to the queue."
