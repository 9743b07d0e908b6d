"""One cycle of the lab: news is written down, what fits is started, those who wait get their reasons.

The same code runs in the server's loop, driven by real news, and in the simulator, driven by a virtual clock. It starts no thread
and never waits; its caller passes the time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from carrel.core.control.admission import Admission
from carrel.core.control.attempt_changes import AttemptChanges, Describe, not_started
from carrel.core.control.before_place import BeforePlace
from carrel.core.control.device_offers import DeviceOffers
from carrel.core.control.event_ports import EventLog
from carrel.core.control.history import learn
from carrel.core.control.inbox import News
from carrel.core.control.launching import asking_little, build_launch, job_token
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.parents import WaitingParents
from carrel.core.control.ports import SchedulerStore, StartOrder
from carrel.core.control.preempting import Preempting
from carrel.core.control.prerequisites import Prepares, prepared_by
from carrel.core.control.queue import Queue
from carrel.core.control.queue_positions import QueuePositions
from carrel.core.control.queue_report import QueueReport
from carrel.core.control.ranking import Ranking
from carrel.core.control.start_ranges import StartRanges
from carrel.core.control.starting import Starting
from carrel.core.control.submit_limits import SubmitLimits, is_refused
from carrel.core.control.usage import REMEMBERED, UsageBook
from carrel.core.domain.errors import Conflict
from carrel.core.domain.job import MACHINE_LIMIT, Job, JobState, Reason
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import FreeGpus, Holding, Snapshot, Start, Wait, Waiting
from carrel.core.domain.ports import Attempt, Engine
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.task import TaskSpec
from carrel.core.policy.placer import Placer
from carrel.core.policy.runtime import RunTimes

_log = logging.getLogger(__name__)

#: Seconds after which something that failed for want of a disk or a database is tried again.
RETRY_SECONDS = 1.0
#: Seconds before a job whose start was refused is placed again.
_REFUSED_SECONDS = 5.0
#: Seconds between two looks at devices that others hold, while somebody waits.
_WITHHELD_SECONDS = 5.0


class Scheduler:
    """The queue, the nodes, and what is decided about them. Used by one thread, but for `queue_report` and `holding`."""

    def __init__(
        self, *, jobs: SchedulerStore, events: EventLog, engine: Engine, settings: LoopSettings, describe: Describe | None = None
    ) -> None:
        self._jobs = jobs
        self._engine = engine
        self._settings = settings
        self._placer = Placer()
        #: Sessions that do nothing now, by number.
        self.idle = frozenset[int]()
        self.use = UsageBook(settings.rules)
        #: How long jobs run, as far as that is known.
        self.run_times = RunTimes()
        self._ranking = Ranking(settings, self._placer, self.use, self.run_times)
        self._queue = Queue(grace=settings.launch.limits.grace, late_by=self._ranking.late_by, machine=settings.machines.node)
        self._devices = DeviceOffers(engine, settings, self._queue, self._placer)
        self._starting = Starting(engine, self._queue, settings.secret, build=self._build, failed=self._not_started)
        self.before_place = BeforePlace(
            jobs=jobs,
            events=events,
            engine=engine,
            prepares=self._prepares,
            launch=self._launch_before_place,
            built=settings.built,
            token=lambda job: job_token(settings.secret, job.id, 0),
            withdrawal=settings.withdrawal,
        )
        self._admission = Admission(jobs, settings, self.before_place, keep_out=self._keep_out, put=self._put)
        self.parents = WaitingParents(self._queue, self._why_in_line)
        self._preempting = Preempting(jobs, engine, self._queue, self.parents)
        self._submit_limits = SubmitLimits(self._placer)
        #: Jobs that Slurm had refused when an earlier server ended: they are looked at once the rules are known.
        self._refused_before: list[Job] = []
        self._changes = AttemptChanges(jobs, self._queue, self.use, describe, settings.fault)
        #: What people saw about starts, and how that turned out.
        self.start_ranges = StartRanges(settings.start_ranges)
        self._positions = QueuePositions(events, self._queue, self.start_ranges)
        #: Where those stood who wait, when the last cycle looked.
        self.queue_report = QueueReport(None, 0.0)
        #: Jobs that are not placed before a moment to come.
        self._paused: dict[int, float] = {}
        #: Jobs in line for which a machine is made.
        self._composed: set[int] = set()
        #: Jobs that are stopped, and wait for their place.
        self._stopped: set[int] = set()
        self._reserved: Sequence[Reservation] = ()
        #: Why nothing starts, or None.
        self._halt: Reason | None = None
        self._looked_at = 0.0
        #: Jobs that came into the line since the last cycle: they get their place at once.
        self._newcomers: list[int] = []

    def holding(self) -> tuple[Holding, ...]:
        """The jobs that hold resources now, for those who only look."""
        return self._queue.all_held

    def recover(self, now: float) -> tuple[Sequence[tuple[Attempt, Launch, str]], Sequence[Job]]:
        """Take up what an earlier server left: the attempts to adopt, and the jobs whose end or place somebody wants."""
        adopted, wanted = [], []
        self.start_ranges.recover()
        self._admission.look()
        nodes = self._engine.nodes()
        self.use.load(self._jobs.used(since=now - REMEMBERED * self._settings.rules.current.half_life))
        for job in self._jobs.active():
            if job.state is JobState.PENDING:
                self._put(job, now)
                if is_refused(job):
                    self._refused_before.append(job)
                continue
            row, task = self._jobs.attempt(job.id, job.attempt), self._jobs.task(job.id)
            if row is None or task is None:  # pragma: no cover - a foreign key forbids it
                raise Conflict(f"Job {job.id} holds resources but attempt {job.attempt} is not in the database.")
            self.use.take_up(job, leased_at=row.leased_at, borrowed=row.lease_seconds, now=now)
            self._put(job, now)
            self._queue.seen(job.id, offset=row.journal_offset, log_size=row.log_size)
            launch = self._build(job, task, nodes)
            token = job_token(self._settings.secret, job.id, job.attempt)
            adopted.append((Attempt(job_id=job.id, number=job.attempt, offset=row.journal_offset), launch, token))
            if job.cancelled_by is not None or job.preemption is not None or job.state is JobState.SUSPENDED:
                # Asked for before the restart, perhaps not passed on: asking twice does no harm.
                wanted.append(job)
        return adopted, wanted

    def next_at(self) -> float | None:
        """When time alone is a reason for a cycle; None when only news is."""
        again = (self._preempting.again_at, self._positions.again_at, self._submit_limits.next_at())
        moments = [*self._paused.values(), *(moment for moment in again if moment is not None)]
        if self._admission:
            moments.append(self._looked_at)
        if self._starting:
            moments.append(self._looked_at + RETRY_SECONDS)
        if self._devices.unavailable and (self._queue.waiting or self._stopped):
            moments.append(self._looked_at + _WITHHELD_SECONDS)
        if self._queue.waiting and (change := self._placer.next_change(self._looked_at)) is not None:
            moments.append(change)
        return min(moments) if moments else None

    def cycle(self, news: News, now: float) -> None:
        """Deal with `news`, then start what fits.

        What is done leaves `news` at once, so that only the rest is given back when the disk or the database fails
        (`Unavailable`).
        """
        while self.queue_report.answered:
            self.start_ranges.told(self.queue_report.answered.popleft(), self.queue_report.now)
        while news.jobs:
            self._take_in(news.jobs[0], now)
            del news.jobs[0]
        self._hold_back(now)
        self.before_place.hear(news.observations, now)
        self._record(news.observations, now)
        news.observations.clear()
        self._starting.turn(now)
        self._let_in(now)
        self._start_what_fits(now)
        self.start_ranges.write()

    def _let_in(self, now: float) -> None:
        for job in self._admission.turn(now):
            self._put(job, now)
            self._newcomers.append(job.id)

    def _hold_back(self, now: float) -> None:
        """Jobs of users who are held leave the line; those of who goes on come back into it."""
        if not self._admission.look():
            return
        for waiting in list(self._queue.waiting.values()):
            if (job := self._queue.job(waiting.id)) is not None and self._admission.holds(job):
                self._put(job, now)
        for job in self._admission.back():
            self._put(job, now)
            self._newcomers.append(job.id)

    def _keep_out(self, job: Job) -> None:
        self._queue.set_aside(job.id)
        self._placer.forget(job.id)
        self._paused.pop(job.id, None)
        self._positions.forget(job.id)

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
            if job.attempt:  # it was in line again: what its attempts kept for the next one goes
                self._engine.forget(job.id, job.attempt)
            return
        if job.cancelled_by is not None and known is not None and not known.state.ended:
            self._put(replace(known, cancelled_by=job.cancelled_by), now)
            self._engine.cancel(known.id, known.attempt, by=job.cancelled_by)
        elif known is not None and not known.state.ended:  # taken up from an earlier server
            self._preempting.tell(known)

    def _record(self, observations: Sequence[Observation], now: float) -> None:
        fresh = [(job, observation) for observation in observations if (job := self._changes.awaited(observation)) is not None]
        understood, changes = self._changes.all_of(fresh, now)
        written = self._changes.write(changes, now)
        refused = [job for job in written if is_refused(job)]
        for job in refused:
            self._put(job, now)
        if refused and self._ranking.rules is None:
            self._refused_before += refused
        elif refused:
            # Before those that have ended are reported: what they leave is room.
            self._submit_limits.given_back(refused, now)
        for job in written:
            if not is_refused(job):
                pause = _REFUSED_SECONDS if job.reason.code == MACHINE_LIMIT else RETRY_SECONDS
                self._put(job, now, not_before=now + pause if job.state is JobState.PENDING else 0.0)
        for job in written:
            if job.state is JobState.SUSPENDED and job.preemption is None:
                # It was to run on; a server that was killed has written that down, and perhaps not passed it on.
                self._preempting.tell(job)
        for (job, observation), change in zip(understood, changes, strict=True):
            self._queue.seen(job.id, offset=change.offset, log_size=change.log_size)
            if change.ended_at is not None:
                over = change.state is None or change.state.ended
                self._engine.forget(observation.job_id, observation.attempt, over=over)

    def _put(self, job: Job, now: float, not_before: float = 0.0) -> None:
        if not self._admission.admits(job, now):
            return
        known = self._queue.job(job.id)
        entry = self._queue.put(job, now=now, not_before=not_before)
        if not isinstance(entry, Holding):
            self._ranking.forget(job.id)
        if entry is None:
            self._placer.forget(job.id)
            self.start_ranges.forget(job.id)
            if known is not None:  # news of an end may come twice
                learn(self.run_times, (job,))
            self._changes.forget(job.id)
            self._positions.forget(job.id)
        elif isinstance(entry, Holding):
            self._placer.hold(self._ranking.due(entry, now))
            self.start_ranges.started(job.id, now)
        else:
            self._placer.wait(self._ranking.expected(entry))
        if isinstance(entry, Waiting) and job.resources.compose:
            self._composed.add(job.id)
        else:
            self._composed.discard(job.id)
        self.use.put(job, now=now)
        if job.stopped:
            self._stopped.add(job.id)
        else:
            self._stopped.discard(job.id)
        if not_before > now:
            self._paused[job.id] = not_before
        else:
            self._paused.pop(job.id, None)
        self._admission.changed(job)

    def _start_what_fits(self, now: float) -> None:
        self._looked_at = now
        self._devices.look()
        for job_id in [job_id for job_id, moment in self._paused.items() if moment <= now]:
            del self._paused[job_id]
        self._ranking.turn(self._queue, self._newcomers, now)
        if self._refused_before:
            self._submit_limits.given_back(self._refused_before, now, after_restart=True)
            self._refused_before.clear()
        self._submit_limits.turn(now)
        self._devices.make()
        self._reserved = tuple(self._settings.reserved())
        self._placer.reservations(self._reserved)
        self._follow_machines(now)
        for job in self._preempting.go_on(self._picture(now), now) if self._stopped else ():
            self._put(job, now)
        self._ranking.hold_those_overdue(now)
        self._halt = self._settings.halted()
        if self._halt is None:
            self._start_waiting(now)
        if self._settings.tells:
            self.queue_report = self.look(now)
            self._positions.tell(self.queue_report, self._newcomers, now)
        self._newcomers.clear()

    def _follow_machines(self, now: float) -> None:
        """Jobs whose machines came or went have another place."""
        for waiting in [one for job_id in self._composed if (one := self._queue.waiting.get(job_id)) is not None]:
            job = self._queue.job(waiting.id)
            if job is not None and waiting.node != self._settings.machines.node(job.id):
                self._put(job, now, not_before=waiting.not_before)

    def _start_waiting(self, now: float) -> None:
        starts = self._devices.place(now)
        self._settings.machines.ask(self._placer.without_machine)
        if starts:
            self._carry_out(starts, now)
        qos = self._settings.rules.current.qos
        promised = [one.job for one in self._placer.promises if one.job.qos in qos]
        waited_for, idle = self.parents.children(), self.parents.idle(now)
        takers = [one for one in promised if qos[one.qos].preempts or one.id in waited_for or (idle and one.resources.total_gpus)]
        for job in self._preempting.make_room(takers, lambda: self._picture(now), now):
            self._put(job, now)

    def _why_in_line(self, job_id: int) -> str:
        wait = self.queue_report.wait_of(job_id)
        return "" if wait is None else wait.reason.message

    def look(self, now: float) -> QueueReport:
        """Where everybody stands who waits."""
        corrections = self.start_ranges.calibration.corrections
        outcome = self._placer.look(
            now, blocked=self._devices.offer.blocked, idle=self.idle, machines=self._settings.machines.waits()
        )
        return QueueReport(outcome, now, self.run_times.remaining, corrections=corrections, halt=self._halt)

    def preview(self, job: Waiting) -> Wait | None:
        """Where a job would stand that is not in line yet, or None where it would start. For any thread."""
        return self.queue_report.preview(replace(job, grace=self._queue.grace))

    def free_for(self, job: Waiting, now: float) -> Sequence[FreeGpus]:
        """What is free of each type of GPU for tasks like `job`. For any thread."""
        return self.queue_report.free_for(replace(job, grace=self._queue.grace), now)

    def _picture(self, now: float) -> Snapshot:
        return self._ranking.picture(self._queue, self._devices, self._reserved, now)

    def _carry_out(self, starts: Sequence[Start], now: float) -> None:
        orders = [
            StartOrder(job_id=start.job_id, node=start.node, devices=start.devices, others=start.others) for start in starts
        ]
        try:
            started = self._jobs.start(orders, now=now)
        except Exception:
            # Nothing was written: everybody is in line again.
            self._ranking.wait_again(self._queue, starts)
            raise
        for job_id in {start.job_id for start in starts} - {job.id for job, _ in started}:
            self._placer.forget(job_id)  # cancelled meanwhile: the news of it is on its way
        for job, _ in started:
            self._put(job, now)
            self._positions.forget(job.id)
        self._starting.add(started)
        self._starting.turn(now)

    def _build(self, job: Job, task: TaskSpec, nodes: Sequence[Node]) -> Launch:
        launch = build_launch(job, task, nodes, self._settings.launch, self._settings.rules.current.qos.get(job.qos))
        staged = self.before_place.found(job.id)
        return launch if staged is None else replace(launch, staged=staged)

    def _prepares(self, job: Job) -> Prepares:
        return prepared_by(self._settings.rules.current.partitions.get(job.partition))

    def _launch_before_place(self, job: Job, task: TaskSpec) -> Launch:
        if self._prepares(job) is Prepares.HERE:
            return self._build(job, task, ())
        place = self._settings.rules.current.partitions[job.partition].cluster
        return asking_little(self._build(replace(job, node=place), task, ()))

    def _not_started(self, job: Job, state: JobState, reason: Reason, now: float) -> None:
        """The engine has started nothing: the attempt is over; a job that goes on is placed again a little later."""
        change = not_started(job, state, reason, now)
        for after in self._changes.write([change], now):
            self._put(after, now, not_before=now + _REFUSED_SECONDS if state is JobState.PENDING else 0.0)
