"""The control loop: news in, decisions out.

One thread owns the queue. It sleeps until there is news (a submission, a cancellation, an observation), writes down what
the news means, asks the placement policy once for all of it, writes down what it decided, and only then tells the engine.
Whatever dies in between is picked up from the store: a start that was written down but not carried out is carried out by
`Engine.adopt`, and an observation that was not written down is still in its journal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from carrel.control.inbox import Inbox, News
from carrel.control.launching import LaunchSettings, build_launch, job_token
from carrel.control.news import interpret, queue_event
from carrel.control.ports import AttemptChange, EventStore, JobStore, OutboxEntry, StartOrder
from carrel.control.queue import Queue
from carrel.domain.errors import CarrelError, Conflict, StorageFull, Unavailable
from carrel.domain.job import Job, JobState, Reason
from carrel.domain.launch import Launch, Observation
from carrel.domain.placement import Hold, Holding, Placement, Snapshot, Start, Waiting
from carrel.domain.ports import Attempt, Clock, Engine
from carrel.domain.qos import QoS
from carrel.domain.task import TaskSpec

_log = logging.getLogger(__name__)

#: Seconds after which something that failed for want of a disk or a database is tried again.
_RETRY_SECONDS = 1.0
#: Seconds before a job whose start was refused is placed again.
_REFUSED_SECONDS = 5.0
#: Seconds between two looks at devices that others hold, while somebody waits.
_WITHHELD_SECONDS = 5.0
#: Seconds between two messages about a position in the queue.
_TELL_SECONDS = 1.0
#: How many jobs at the head of the queue have their position told as it changes; the others are told when they ask.
_TOLD = 25

Place = Callable[[Snapshot, float], Placement]
#: What there is to tell the tracking server about a change: (job before, its task, the change) -> entries.
Describe = Callable[[Job, TaskSpec, AttemptChange, Observation], Sequence[OutboxEntry]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What the loop is given at its composition."""

    qos: dict[str, QoS]
    launch: LaunchSettings
    #: Key of the job tokens.
    secret: bytes
    age_weight: float = 600.0


class ControlLoop:
    """Runs in a thread of its own between `start` and `stop`."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        events: EventStore,
        engine: Engine,
        place: Place,
        clock: Clock,
        settings: LoopSettings,
        describe: Describe | None = None,
    ) -> None:
        self._jobs = jobs
        self._events = events
        self._engine = engine
        self._place = place
        self._clock = clock
        self._settings = settings
        self._describe = describe
        self._queue = Queue()
        self._inbox = Inbox()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._placement = Placement()
        self._adopted: list[tuple[Attempt, Launch, str]] = []
        #: Jobs that are not placed before a moment to come.
        self._paused: dict[int, Waiting] = {}
        self._withheld: frozenset[str] = frozenset()
        self._looked_at = self._told_at = 0.0
        #: When to tell those whose position has changed but who were told something a moment ago.
        self._tell_again: float | None = None
        #: Jobs that came into the line since the last cycle: they are told where they stand at once.
        self._newcomers: list[int] = []
        #: What the owners at the head of the queue were told last.
        self._told: dict[int, tuple[int, str]] = {}
        #: Descriptions of jobs that hold resources, for those who report on them.
        self._tasks: dict[int, TaskSpec] = {}

    # ---- what others call, from any thread

    def start(self) -> None:
        """Take up what an earlier server left, then begin."""
        self._recover()
        self._engine.observe(self.observed)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; jobs go on."""
        self._inbox.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def changed(self, job: Job) -> None:
        """The job was submitted or cancelled in the store."""
        self._inbox.put(jobs=(job,))

    def observed(self, observations: Sequence[Observation]) -> None:
        """An engine has news."""
        self._inbox.put(observations=observations)

    @property
    def placement(self) -> Placement:
        """The last answer of the policy."""
        return self._placement

    def hold_of(self, job_id: int) -> Hold | None:
        """Where a waiting job stood when the last cycle looked, or None."""
        return self._placement.hold_of(job_id)

    def holding(self) -> tuple[Holding, ...]:
        """The jobs that hold resources now, for those who only look."""
        return tuple(self._queue.holding.values())

    # ---- the thread

    def _recover(self) -> None:
        now = self._clock()
        adopted = []
        nodes = self._engine.nodes()
        for job in self._jobs.active():
            self._queue.put(job, now=now)
            if job.state is JobState.PENDING:
                continue
            row, task = self._jobs.attempt(job.id, job.attempt), self._jobs.task(job.id)
            if row is None or task is None:  # pragma: no cover - a foreign key forbids it
                raise Conflict(f"Job {job.id} holds resources but attempt {job.attempt} is not in the database.")
            self._queue.seen(job.id, offset=row.journal_offset, log_size=row.log_size)
            launch = build_launch(job, task, nodes, self._settings.launch)
            token = job_token(self._settings.secret, job.id, job.attempt)
            attempt = Attempt(job_id=job.id, number=job.attempt, offset=row.journal_offset)
            adopted.append((attempt, launch, token))
            if job.cancelled_by is not None:
                # Asked for before the restart, perhaps not passed on: asking twice does no harm.
                self._inbox.put(jobs=(job,))
        self._adopted = adopted
        self._inbox.put()

    def _run(self) -> None:
        self._engine.adopt(self._adopted)
        self._adopted = []
        while (news := self._inbox.take(self._seconds_to_next)) is not None:
            try:
                self._cycle(news)
            except Unavailable as error:
                _log.error("The control loop cannot go on: %s It tries again in %g s.", error, _RETRY_SECONDS)
                self._inbox.give_back(news)
                self._inbox.pause(_RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - a defect must not take the lab down with it
                _log.exception("A cycle of the control loop failed; it goes on with the next one.")
                self._inbox.pause(_RETRY_SECONDS)

    def _seconds_to_next(self) -> float | None:
        """Seconds until time alone is a reason for a cycle; None when only news is."""
        moments = [waiting.not_before for waiting in self._paused.values()]
        if self._tell_again is not None:
            moments.append(self._tell_again)
        if self._withheld and self._queue.waiting:
            moments.append(self._looked_at + _WITHHELD_SECONDS)
        return min(moments) - self._clock() if moments else None

    def _cycle(self, news: News) -> None:
        # What is done leaves `news` at once, so that only the rest is given back when the disk or the database fails.
        now = self._clock()
        while news.jobs:
            self._take_in(news.jobs[0], now)
            del news.jobs[0]
        self._record(news.observations, now)
        news.observations.clear()
        self._start_what_fits(now)

    def _take_in(self, job: Job, now: float) -> None:
        """A job was submitted, or somebody wants its end."""
        known = self._queue.job(job.id)
        if job.state is JobState.PENDING:
            if known is None or known.state is JobState.PENDING:
                self._put(job, now)
                self._newcomers.append(job.id)
            return
        if job.state.ended:
            self._put(job, now)
            return
        if job.cancelled_by is not None and known is not None and not known.state.ended:
            self._put(replace(known, cancelled_by=job.cancelled_by), now)
            self._engine.cancel(known.id, known.attempt, by=job.cancelled_by)

    def _record(self, observations: Sequence[Observation], now: float) -> None:
        fresh = [(job, observation) for observation in observations if (job := self._awaited(observation)) is not None]
        changes = [self._interpret(job, observation, now) for job, observation in fresh]
        for job in self._write(changes, now):
            self._put(job, now, not_before=now + _RETRY_SECONDS if job.state is JobState.PENDING else 0.0)
        for (job, observation), change in zip(fresh, changes, strict=True):
            self._queue.seen(job.id, offset=change.offset, log_size=change.log_size)
            if change.ended_at is not None:
                self._engine.forget(observation.job_id, observation.attempt)

    def _awaited(self, observation: Observation) -> Job | None:
        """The job that the observation is about, unless it is late, repeated or of an attempt that is over."""
        job = self._queue.job(observation.job_id)
        if job is None or job.attempt != observation.attempt or not job.state.holds_resources:
            return None
        if observation.entries and observation.offset <= self._queue.known(job.id).offset:
            return None
        return job

    def _interpret(self, job: Job, observation: Observation, now: float) -> AttemptChange:
        change = interpret(job, observation, log_size=self._queue.known(job.id).log_size, now=now)
        if self._describe is None:
            return change
        task = self._tasks.get(job.id) or self._jobs.task(job.id)
        if task is None:  # pragma: no cover - a foreign key forbids it
            return change
        self._tasks[job.id] = task
        return replace(change, outbox=tuple(self._describe(job, task, change, observation)))

    def _write(self, changes: Sequence[AttemptChange], now: float) -> Sequence[Job]:
        if not changes:
            return ()
        try:
            return self._jobs.change(changes, now=now)
        except Unavailable:
            raise
        except CarrelError:
            _log.exception("A batch of %d changes was refused; they are written one by one.", len(changes))
        written: list[Job] = []
        for change in changes:
            try:
                written.extend(self._jobs.change([change], now=now))
            except Unavailable:
                raise
            except CarrelError:
                _log.exception("Job %d: a change was refused and is dropped: %r", change.job_id, change)
        return written

    def _put(self, job: Job, now: float, not_before: float = 0.0) -> None:
        self._queue.put(job, now=now, not_before=not_before)
        if not_before > now:
            self._paused[job.id] = self._queue.waiting[job.id]
        else:
            self._paused.pop(job.id, None)
        if job.state.ended:
            self._tasks.pop(job.id, None)
            self._told.pop(job.id, None)

    def _start_what_fits(self, now: float) -> None:
        self._withheld, self._looked_at = self._engine.withheld(), now
        snapshot = Snapshot(
            nodes=self._engine.nodes(),
            qos=self._settings.qos,
            waiting=tuple(self._queue.waiting.values()),
            holding=tuple(self._queue.holding.values()),
            withheld=self._withheld,
            age_weight=self._settings.age_weight,
        )
        for job_id in [job_id for job_id, waiting in self._paused.items() if waiting.not_before <= now]:
            del self._paused[job_id]
        self._placement = placement = self._place(snapshot, now)
        if placement.starts:
            self._carry_out(placement.starts, now)
        self._tell(placement, now)

    def _carry_out(self, starts: Sequence[Start], now: float) -> None:
        orders = [StartOrder(job_id=start.job_id, node=start.node, devices=start.devices) for start in starts]
        nodes = self._engine.nodes()
        for job, task in self._jobs.start(orders, now=now):
            self._put(job, now)
            self._told.pop(job.id, None)
            try:
                launch = build_launch(job, task, nodes, self._settings.launch)
                self._engine.start(launch, token=job_token(self._settings.secret, job.id, job.attempt))
            except Unavailable as error:
                self._not_started(job, JobState.PENDING, _refusal(job, error), now)
            except Exception as error:  # noqa: BLE001 - whatever it was, this job must not stay half started
                _log.exception("Job %d could not be started.", job.id)
                self._not_started(job, JobState.FAILED, Reason(code="LaunchFailed", message=str(error)), now)

    def _not_started(self, job: Job, state: JobState, reason: Reason, now: float) -> None:
        """The engine has started nothing: the attempt is over; a job that goes on is placed again a little later."""
        change = AttemptChange(
            job_id=job.id,
            attempt=job.attempt,
            state=state,
            attempt_state=JobState.NODE_FAIL if state is JobState.PENDING else state,
            reason=reason,
            ended_at=now,
        )
        for after in self._write([change], now):
            self._put(after, now, not_before=now + _REFUSED_SECONDS if state is JobState.PENDING else 0.0)

    def _tell(self, placement: Placement, now: float) -> None:
        """Say where they stand to newcomers at once, and to those at the head of the queue when some time has passed."""
        soon = now < self._told_at + _TELL_SECONDS
        news, moved = [], False
        newcomers = [placement.hold_of(job_id) for job_id in self._newcomers[:_TOLD]]
        self._newcomers.clear()
        for hold in (*placement.holds[:_TOLD], *(hold for hold in newcomers if hold is not None)):
            job = self._queue.job(hold.job_id)
            before, told = self._told.get(hold.job_id), (hold.position, hold.reason.code)
            if job is None or before == told:
                continue
            if before is not None and soon:
                moved = True
                continue
            self._told[hold.job_id] = told
            news.append(queue_event(job, hold))
        self._tell_again = self._told_at + _TELL_SECONDS if moved else None
        if news:
            self._events.append(news, now=now)
            self._told_at = now if not soon else self._told_at


def _refusal(job: Job, error: Unavailable) -> Reason:
    if isinstance(error, StorageFull):
        return Reason(code="StorageFull", message=str(error))
    return Reason(code="DeviceBusy" if job.devices else "ReqNodeNotAvail", message=str(error))
