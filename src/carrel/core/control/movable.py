"""Which tasks with state on real GPUs can be suspended: those whose state the broker can move, and for which there is room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from carrel.core.control.launching import why_it_keeps_gpus
from carrel.core.control.queue import Queue, can_stop
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.placement import UNKNOWN_STATE, GpuState, Preempt, Snapshot, Waiting
from carrel.core.domain.qos import JobKind, PreemptMode
from carrel.core.policy.preempt import PATIENCE, preempt


class Movable:
    """What the broker can move for jobs that preempt others. Used by the loop's thread.

    A broker that was started anew, and one that a new server has not heard yet, says another thing a moment later. So a state
    counts as one that stays once that has been so for `PATIENCE`; until then no task is requeued that may be suspended.
    """

    def __init__(self, queue: Queue, gpu_state: Callable[[], GpuState]) -> None:
        self._queue, self._gpu_state = queue, gpu_state
        #: Since when states stay that somebody wants moved, by job.
        self._since: dict[int, float] = {}
        self._asked: set[int] = set()
        #: Why tasks cannot be suspended, by job, as the last decision had it.
        self.stays: dict[int, str] = {}

    def decide(
        self, picture: Snapshot, taker: Waiting, now: float, *, parent: int | None, idle: Collection[int] = ()
    ) -> Sequence[Preempt]:
        """Return whom to preempt for `taker`; nobody while it is not known what can be moved."""
        found = self._gpu_state()
        jobs = [job for held in picture.holding if held.id != parent and (job := self._queue.job(held.id)) is not None]
        asked = [job for job in jobs if found.has_mover and _is_the_brokers(job, picture)]
        whys = {job.id: why_it_keeps_gpus(job, picture.qos[job.qos]) or self._why_it_stays(job.id, found, now) for job in asked}
        self.stays = {job_id: why for job_id, why in whys.items() if why}
        movable = whys.keys() - self.stays.keys()
        while True:
            holding = [replace(held, suspendable=True) if held.id in movable else held for held in picture.holding]
            decided = preempt(replace(picture, holding=holding), taker, now, parent=parent, idle=idle)
            moved = sorted(movable & {one.job_id for one in decided if one.mode is PreemptMode.SUSPEND})
            sizes = [found.tasks.get(job_id, UNKNOWN_STATE).bytes for job_id in moved]
            if found.host_left is None or sum(sizes) <= found.host_left:
                return () if any(job_id in self._since for job_id in moved) else decided
            largest = moved[sizes.index(max(sizes))]
            movable = movable - {largest}
            self.stays[largest] = "host memory has no room for the GPU state of all jobs that would be stopped"

    def why_requeued(self, job: Job) -> str:
        """Why the last decision requeues a job whose class wants it suspended, for its owner."""
        if job.id in self.stays:
            return self.stays[job.id]
        if job.state is not JobState.RUNNING:
            return "it is still being prepared"
        if job.kind is not JobKind.TASK:
            return f"it is a {job.kind.value}"
        if job.others:
            return "its processes are on several nodes"
        if not can_stop(job) and not self._gpu_state().has_mover:
            return "no broker on its node moves GPU state"
        return "its memory is needed, too"

    def stuck(self, now: float) -> Sequence[int]:
        """The jobs that were to be suspended, run on, and have GPU state that turned out to stay."""
        leaving = [held.id for held in self._queue.holding.values() if held.leaving and self._leaves_by_broker(held.id)]
        found = self._gpu_state() if leaving else GpuState()
        return [job_id for job_id in leaving if self._why_it_stays(job_id, found, now)]

    def again_at(self, now: float) -> float | None:
        """When it is known of another one that it stays, or None. After all that is asked in a cycle."""
        self._since = {job_id: since for job_id, since in self._since.items() if job_id in self._asked}
        self._asked.clear()
        return min((moment for since in self._since.values() if (moment := since + PATIENCE) > now), default=None)

    def _leaves_by_broker(self, job_id: int) -> bool:
        job = self._queue.job(job_id)
        wish = job.preemption if job is not None and job.state is JobState.RUNNING and not can_stop(job) else None
        return wish is not None and wish.mode is PreemptMode.SUSPEND

    def _why_it_stays(self, job_id: int, found: GpuState, now: float) -> str:
        """Why the job's GPU state stays where it is; "" where it does not, or has not done so for long."""
        self._asked.add(job_id)
        why = found.tasks.get(job_id, UNKNOWN_STATE).stays
        if not why:
            self._since.pop(job_id, None)
        return why if why and now >= self._since.setdefault(job_id, now) + PATIENCE else ""


def _is_the_brokers(job: Job, picture: Snapshot) -> bool:
    """True of a running task whose class wants it suspended, which it can be only by the broker."""
    qos = picture.qos.get(job.qos)
    wanted = qos is not None and qos.preempt_mode is PreemptMode.SUSPEND and job.state is JobState.RUNNING
    return wanted and job.kind is JobKind.TASK and not job.handed_over and not can_stop(job)
