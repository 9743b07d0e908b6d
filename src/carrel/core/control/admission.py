"""Who may come into the line: not who waits for other jobs, for an environment or inputs, or belongs to a suspended user."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from carrel.core.control.before_place import BeforePlace
from carrel.core.control.dependents import Dependents
from carrel.core.control.held_users import held_by
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.ports import SchedulerStore
from carrel.core.domain.dependency import Verdict, describe_dependency, read_dependency
from carrel.core.domain.job import Job, JobState, Reason


class Admission:
    """Keeps jobs out of the line until they may come into it."""

    def __init__(
        self,
        jobs: SchedulerStore,
        settings: LoopSettings,
        before_place: BeforePlace,
        *,
        keep_out: Callable[[Job], None],
        put: Callable[[Job, float], None],
    ) -> None:
        """`keep_out` takes a job out of the line; `put` is told of a job that has ended here."""
        self._jobs, self._settings, self._before_place = jobs, settings, before_place
        self._keep_out, self._put = keep_out, put
        self._dependents = Dependents(jobs)
        #: Jobs for which something has happened that they wait for.
        self._freed: deque[int] = deque()
        #: Whose jobs are set aside, as the last cycle saw it, and these jobs.
        self._held: Mapping[str, Reason] = {}
        self._aside: dict[int, Job] = {}

    def __bool__(self) -> bool:
        """Whether somebody may come into the line now."""
        return bool(self._freed)

    def look(self) -> bool:
        """See which users are held; return whether that has changed."""
        held = self._settings.held()
        changed, self._held = held is not self._held, held
        return changed

    def admits(self, job: Job, now: float) -> bool:
        """Return whether the job may be in line, or need not; otherwise it is kept until `turn` or `back` returns it."""
        verdict = self._dependents.verdict(job)
        if verdict is Verdict.OPEN:
            return False
        if verdict is Verdict.NEVER:
            self._withdraw(job, now)
            return False
        if job.state is JobState.PENDING and self.holds(job):
            self._aside[job.id] = job
            self._keep_out(job)
            return False
        self._aside.pop(job.id, None)
        if self._before_place.keeps(job, now):
            self._keep_out(job)
            return False
        return True

    def holds(self, job: Job) -> bool:
        """Whether its owner is suspended, or has no room for what it stores."""
        return held_by(self._held, job) is not None

    def back(self) -> list[Job]:
        """Jobs of those who were held and go on."""
        return [job for job in self._aside.values() if not self.holds(job)]

    def turn(self, now: float) -> Iterator[Job]:
        """Those who waited for others, or can never start any more; then those whose environment and inputs are here.

        Whom the caller could not deal with is yielded again the next time.
        """
        while self._freed:
            job = self._dependents.job(self._freed[0])
            if job is not None:
                yield job
            self._freed.popleft()
        yield from self._before_place.turn(now, self._settings.halted())

    def changed(self, job: Job) -> None:
        """Others may have waited for what happened to this job."""
        self._freed.extend(other.id for other in self._dependents.after(job))

    def _withdraw(self, job: Job, now: float) -> None:
        """What the job waits for can never happen."""
        message = f"{describe_dependency(read_dependency(job.dependency))} That can never be any more."
        reason = Reason(code="DependencyNeverSatisfied", message=message)
        after = self._jobs.request_cancel(job.id, by="the lab", reason=reason, now=now, outbox=self._settings.withdrawal)
        if after is not None and after.state.ended:
            self._put(after, now)
