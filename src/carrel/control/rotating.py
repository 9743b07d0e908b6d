"""Jobs of classes that rotate, as `policy.rotation` sees them: what they have had, and since when they run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from carrel.control.queue import Queue
from carrel.domain.job import Job, JobState
from carrel.domain.placement import Holding, Preempt, Snapshot, Waiting
from carrel.policy.rotation import Turn, next_turn, rotates, take_turns


class Rotating:
    """Whose turn it is. Used by the loop's thread.

    Since when a job runs that had been stopped is kept in memory: after a restart of the server it counts as going on then.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._since: dict[int, float] = {}

    def goes_on(self, job_id: int, now: float) -> None:
        """A job that was stopped goes on now."""
        self._since[job_id] = now

    def choose(self, picture: Snapshot, promised: Sequence[Waiting], now: float) -> tuple[Sequence[Preempt], float | None]:
        """Return who is stopped now for those who stand first in line, and when time alone is a reason to look again."""
        if not any(rotates(picture.qos, one.qos) for one in promised):
            return (), None
        turns = self._turns(picture, now)
        chosen, moment = take_turns(picture, promised, turns, now), next_turn(picture.qos, turns, now)
        return chosen, moment if isfinite(moment) and not chosen else None

    def _turns(self, picture: Snapshot, now: float) -> Sequence[Turn]:
        held = [one for one in self._queue.holding.values() if rotates(picture.qos, one.qos)]
        found = [turn for one in held if (turn := self._turn(self._queue.job(one.id), one, now)) is not None]
        known = {one.id for one in held}
        self._since = {job_id: since for job_id, since in self._since.items() if job_id in known}
        self._since |= {turn.held.id: turn.since for turn in found}
        return found

    def _turn(self, job: Job | None, held: Holding, now: float) -> Turn | None:
        if job is None or job.state is not JobState.RUNNING or job.started_at is None:
            return None
        since = self._since.get(job.id, now if job.pauses else job.started_at)
        return Turn(held=held, again=self._queue.in_line(job, now), since=since)
