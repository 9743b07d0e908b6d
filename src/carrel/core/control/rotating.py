"""Jobs of classes that rotate, as `policy.rotation` sees them: what they have had, and since when they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite

from carrel.core.control.launching import why_it_keeps_gpus
from carrel.core.control.queue import Queue, can_stop
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.placement import UNKNOWN_STATE, Holding, Preempt, Snapshot, TaskState, Waiting
from carrel.core.domain.qos import JobKind, PreemptMode, QoS
from carrel.core.policy.rotation import Turn, next_turn, rotates, take_turns, whose_turn_is_over


class Rotating:
    """Whose turn it is. Used by the loop's thread.

    Since when a job runs that had been stopped is kept in memory: after a restart of the server it counts as going on then.
    """

    def __init__(self, queue: Queue, states: Callable[[], Mapping[int, TaskState]]) -> None:
        """`states`: what tasks have on GPUs, by job."""
        self._queue = queue
        self._states = states
        self._since: dict[int, float] = {}
        #: Why jobs keep their place although their turn is over, since somebody else waits.
        self.stays: dict[int, str] = {}

    def goes_on(self, job_id: int, now: float) -> None:
        """A job that was stopped goes on now."""
        self._since[job_id] = now

    def choose(self, picture: Snapshot, promised: Sequence[Waiting], now: float) -> tuple[Sequence[Preempt], float | None]:
        """Return who is stopped now for those who stand first in line, and when time alone is a reason to look again."""
        if not any(rotates(picture.qos, one.qos) for one in promised):
            return (), None
        turns = self.turns(picture.qos, now)
        wanted = {one.qos for one in promised}
        over = whose_turn_is_over(picture.qos, [turn for turn in turns if turn.held.qos in wanted], now)
        # What is not known yet is mostly known a moment later.
        self.stays = {turn.held.id: turn.stays for turn in over if turn.stays != UNKNOWN_STATE.stays}
        chosen, moment = take_turns(picture, promised, turns, now), next_turn(picture.qos, turns, now)
        return chosen, moment if isfinite(moment) and not chosen else None

    def turns(self, qos: Mapping[str, QoS], now: float) -> Sequence[Turn]:
        """Return the jobs that run in classes that rotate, as they are now."""
        if not any(service.rotate for service in qos.values()):
            return ()
        held = [one for one in self._queue.holding.values() if rotates(qos, one.qos)]
        states = self._states()
        found = [turn for one in held if (turn := self._turn(one, qos[one.qos], states, now)) is not None]
        known = {one.id for one in held}
        self._since = {job_id: since for job_id, since in self._since.items() if job_id in known}
        self._since |= {turn.held.id: turn.since for turn in found}
        return found

    def _turn(self, held: Holding, qos: QoS, states: Mapping[int, TaskState], now: float) -> Turn | None:
        job = self._queue.job(held.id)
        if job is None or job.state is not JobState.RUNNING or job.started_at is None or job.cancelled_by is not None:
            return None
        since = self._since.get(job.id, now if job.pauses else job.started_at)
        again = self._queue.in_line(job, now)
        if can_stop(job) or job.kind is not JobKind.TASK or job.handed_over:
            return Turn(held=held, again=again, since=since)
        state = states.get(job.id, UNKNOWN_STATE)
        stays = why_it_keeps_gpus(job, qos) or state.stays
        return Turn(held=replace(held, suspendable=not stays), again=again, since=since, moves=state.seconds, stays=stays)

    def kept(self) -> Sequence[Job]:
        """Return the jobs that were to be stopped, run on, and have GPU state that turned out to stay."""
        states = self._states()
        return [job for one in self._queue.holding if (job := self._queue.job(one)) is not None and _is_kept(job, states)]


def _is_kept(job: Job, states: Mapping[int, TaskState]) -> bool:
    wish, stays = job.preemption, states.get(job.id, TaskState()).stays
    turns = wish is not None and wish.mode is PreemptMode.SUSPEND and wish.qos == job.qos
    return turns and bool(stays) and job.state is JobState.RUNNING and not can_stop(job)
