"""The jobs that have not ended, as the loop keeps them between cycles: no cycle asks the store who waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from carrel.core.domain.job import Job, JobState
from carrel.core.domain.node import SIMULATED
from carrel.core.domain.parts import without_parts
from carrel.core.domain.placement import ArrayLimit, Holding, Waiting
from carrel.core.domain.qos import JobKind
from carrel.core.domain.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalPosition:
    """How far the present attempt of a job is written down: bytes of its journal and of its log."""

    offset: int = 0
    log_size: int = 0


_NOTHING = JournalPosition()


@dataclass(slots=True)
class Queue:
    """Waiting and holding jobs, in the form that placement takes. Used by the loop's thread alone, but for `job`."""

    #: Seconds that a job may take to end when its walltime is over.
    grace: int = 0
    #: By how many seconds a job counts as submitted later than it was.
    late_by: Callable[[Waiting], float] = lambda _job: 0.0
    #: The node that was made for a job; "": it is not there.
    machine: Callable[[int], str] = lambda _job: ""
    _jobs: dict[int, Job] = field(default_factory=dict)
    _waiting: dict[int, Waiting] = field(default_factory=dict)
    _holding: dict[int, Holding] = field(default_factory=dict)
    _known: dict[int, JournalPosition] = field(default_factory=dict)
    #: How many jobs of each (account, owner) are in line.
    _line: dict[tuple[str, str], int] = field(default_factory=dict)

    def put(self, job: Job, *, now: float, not_before: float = 0.0) -> Waiting | Holding | None:
        """The job is now as given: in line, on a node, or over (then nothing of it is kept). Return it as placement sees it."""
        before = self._waiting.pop(job.id, None)
        if before is not None:
            self._leave(before)
        self._holding.pop(job.id, None)
        if job.state.ended:
            self._jobs.pop(job.id, None)
            self._known.pop(job.id, None)
            return None
        self._jobs[job.id] = job
        if job.state is JobState.PENDING:
            self._known.pop(job.id, None)
            waiting = self._waiting[job.id] = self._in_line(job, not_before)
            who = (job.account, job.owner)
            self._line[who] = self._line.get(who, 0) + 1
            return waiting
        holding = self._holding[job.id] = self._held(job, now)
        return holding

    def _in_line(self, job: Job, not_before: float) -> Waiting:
        waiting = Waiting(
            id=job.id,
            owner=job.owner,
            account=job.account,
            qos=job.qos,
            partition=job.partition,
            name=job.name,
            array=_array_limit(job),
            resources=_counted(job),
            submitted_at=job.submitted_at,
            not_before=not_before,
            grace=self.grace,
            preemptible=job.preemptible and job.kind is JobKind.TASK,
            node=self.machine(job.id) if job.resources.compose else None,
        )
        if late := self.late_by(waiting):
            waiting = replace(waiting, late_by=late)
        return waiting

    def _held(self, job: Job, now: float) -> Holding:
        paused = job.suspended_seconds + (0.0 if job.suspended_at is None else max(0.0, now - job.suspended_at))
        # Where the engine has chosen the node, its limit runs on.
        ends_by = (job.started_at or now) + (0.0 if job.handed_over else paused) + job.resources.time + self.grace
        if job.preemption is not None and not job.stopped:
            ends_by = min(ends_by, job.preemption.ends_by)
        return Holding(
            id=job.id,
            owner=job.owner,
            account=job.account,
            qos=job.qos,
            name=job.name,
            partition=job.partition,
            array=_array_limit(job),
            started_at=job.started_at,
            paused=paused,
            resources=job.resources.kept_while_suspended if job.stopped else _counted(job),
            node=job.node or "",
            devices=() if job.stopped else job.devices,
            others=job.others,
            ends_by=ends_by,
            # One that is about to go on is left alone until it does.
            preemptible=job.preemptible and job.state is not JobState.SUSPENDED,
            suspendable=job.state is JobState.RUNNING and can_stop(job),
            leaving=job.cancelled_by is not None or (job.preemption is not None and not job.stopped),
            suspended=job.stopped,
            open_ended=job.kind is JobKind.SESSION,
        )

    def look_again(self) -> None:
        """Those who wait may count as later, or less late, than before."""
        for job_id, waiting in self._waiting.items():
            self._waiting[job_id] = self._in_line(self._jobs[job_id], waiting.not_before)

    def set_aside(self, job_id: int) -> None:
        """A job that is in line is not in line any more, and not over either."""
        before = self._waiting.pop(job_id, None)
        if before is not None:
            self._leave(before)
            self._jobs.pop(job_id, None)
            self._known.pop(job_id, None)

    def job(self, job_id: int) -> Job | None:
        """The job as last put, or None when it is over or unknown."""
        return self._jobs.get(job_id)

    def known(self, job_id: int) -> JournalPosition:
        """How far the store knows the present attempt."""
        return self._known.get(job_id, _NOTHING)

    def seen(self, job_id: int, *, offset: int | None, log_size: int | None) -> None:
        """The store knows the present attempt up to here; None leaves a number as it was."""
        job, known = self._jobs.get(job_id), self.known(job_id)
        if job is not None and job.state.holds_resources:
            self._known[job_id] = JournalPosition(
                offset=known.offset if offset is None else offset, log_size=known.log_size if log_size is None else log_size
            )

    def _leave(self, waiting: Waiting) -> None:
        who = (waiting.account, waiting.owner)
        self._line[who] -= 1
        if not self._line[who]:
            del self._line[who]

    @property
    def line(self) -> AbstractSet[tuple[str, str]]:
        """Whose jobs are in line: (account, owner)."""
        return self._line.keys()

    @property
    def waiting(self) -> Mapping[int, Waiting]:
        """Jobs in line."""
        return self._waiting

    @property
    def holding(self) -> Mapping[int, Holding]:
        """Jobs that hold resources, and do not wait for more."""
        return self._holding

    @property
    def all_held(self) -> tuple[Holding, ...]:
        """Everything that is held, by whomever; may be asked by other threads."""
        return tuple(self._holding.values())


def can_stop(job: Job) -> bool:
    """True when the job, while it runs, can be stopped and go on later: it has no state on a GPU, and is on one node."""
    return job.kind is JobKind.TASK and not job.others and all(uuid.startswith(SIMULATED) for uuid in job.devices)


def _array_limit(job: Job) -> ArrayLimit | None:
    element = job.element
    return ArrayLimit(element.array_id, element.at_most) if element is not None and element.at_most is not None else None


def _counted(job: Job) -> Resources:
    """What placement keeps for the job. A session mostly waits for its user: it keeps no processors."""
    return replace(job.resources, cpus=0) if job.kind is JobKind.SESSION else without_parts(job.resources)
