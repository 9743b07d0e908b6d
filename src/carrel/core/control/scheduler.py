"""One cycle of the lab: news is written down, what fits is started, those who wait get their reasons.

The same code runs in the server's loop, driven by real news, and in the simulator, driven by a virtual clock. It starts no thread
and never waits; its caller passes the time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.control.attempt_changes import AttemptChanges, Describe
from carrel.core.control.before_place import BeforePlace
from carrel.core.control.dependents import Dependents
from carrel.core.control.history import learn
from carrel.core.control.inbox import News
from carrel.core.control.launching import LaunchSettings, build_launch, job_token
from carrel.core.control.ports import AttemptChange, EventLog, OutboxEntry, SchedulerStore, StartOrder
from carrel.core.control.preempting import Preempting
from carrel.core.control.queue import Queue, kept_id
from carrel.core.control.queue_positions import QueuePositions
from carrel.core.control.queue_report import QueueReport
from carrel.core.control.rules import RuleBook
from carrel.core.control.submit_limits import SubmitLimits, is_refused
from carrel.core.control.usage import REMEMBERED, UsageBook
from carrel.core.domain.dependency import Verdict, describe_dependency, read_dependency
from carrel.core.domain.errors import Conflict, StorageFull, Unavailable
from carrel.core.domain.job import Job, JobState, Reason
from carrel.core.domain.launch import Launch, Observation
from carrel.core.domain.node import Node
from carrel.core.domain.placement import Holding, Snapshot, Start, Waiting
from carrel.core.domain.ports import Attempt, Engine
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.rules import LabRules
from carrel.core.domain.task import TaskSpec
from carrel.core.policy.calibration import Calibration
from carrel.core.policy.clearing import Offer, offer
from carrel.core.policy.expected_ends import ExpectedEnds
from carrel.core.policy.order import order_of
from carrel.core.policy.own_devices import on_own_devices
from carrel.core.policy.placer import Placer
from carrel.core.policy.runtime import RunTimes
from carrel.core.policy.short_first import late_by

_log = logging.getLogger(__name__)

#: Seconds after which something that failed for want of a disk or a database is tried again.
RETRY_SECONDS = 1.0
#: Seconds before a job whose start was refused is placed again.
_REFUSED_SECONDS = 5.0
#: Seconds between two looks at devices that others hold, while somebody waits.
_WITHHELD_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What the loop is given at its composition."""

    rules: RuleBook
    launch: LaunchSettings
    #: Key of the job tokens.
    secret: bytes
    #: Seconds for which standings are used again.
    rank_seconds: float = 5.0
    #: Says which nodes an administrator has drained.
    drained: Callable[[tuple[Node, ...]], tuple[Node, ...]] = tuple
    #: Says which nodes are kept for whom; the very same answer while nothing has changed.
    reserved: Callable[[], Sequence[Reservation]] = tuple
    #: What there is to tell the tracking server about a job that ended while it waited.
    withdrawal: Callable[[Job, TaskSpec], Sequence[OutboxEntry]] = lambda _job, _task: ()
    #: Says why nothing of a user's may start, by their subjects; the very same answer while nothing has changed.
    held: Callable[[], Mapping[str, Reason]] = dict
    #: Says why nothing may start at the moment (a disk is full), or None.
    halted: Callable[[], Reason | None] = lambda: None
    #: Says whether the environment of a launch is there; where nobody does, environments are built in their jobs' places.
    built: Callable[[Launch], bool] = lambda _launch: True
    #: False where nobody asks why a job waits: then no picture of the queue is kept for the answer.
    tells: bool = True


class Scheduler:
    """The queue, the nodes, and what is decided about them. Used by one thread, but for `queue_report` and `holding`."""

    def __init__(
        self, *, jobs: SchedulerStore, events: EventLog, engine: Engine, settings: LoopSettings, describe: Describe | None = None
    ) -> None:
        self._jobs = jobs
        self._events = events
        self._engine = engine
        self._settings = settings
        self._queue = Queue(grace=settings.launch.limits.grace, late_by=self._late_by, rotate=self._rotate)
        self._dependents = Dependents(jobs)
        #: Jobs for which something has happened that they wait for.
        self._freed: deque[int] = deque()
        #: Whose jobs are set aside, as the last cycle saw it, and these jobs.
        self._held: Mapping[str, Reason] = {}
        self._aside: dict[int, Job] = {}
        self.before_place = BeforePlace(
            jobs=jobs,
            events=events,
            engine=engine,
            here=self._is_here,
            launch=lambda job, task: self._build(job, task, ()),
            built=settings.built,
            token=lambda job: job_token(settings.secret, job.id, 0),
            withdrawal=settings.withdrawal,
        )
        self._preempting = Preempting(jobs, engine, self._queue)
        #: Jobs that wait for the devices to which their GPU state comes back, although others are free.
        self._displaced: dict[int, Waiting] = {}
        self._placer = Placer()
        self._submit_limits = SubmitLimits(self._placer)
        #: Jobs that Slurm had refused when an earlier server ended: they are looked at once the rules are known.
        self._refused_before: list[Job] = []
        self.use = UsageBook(settings.rules)
        self._changes = AttemptChanges(jobs, self._queue, self.use, describe)
        #: How long jobs run, as far as that is known.
        self.run_times = RunTimes()
        self._expected_ends = ExpectedEnds(self.run_times.remaining)
        #: What people saw about starts, and how that turned out.
        self.calibration = Calibration()
        self._positions = QueuePositions(events, self._queue, self.calibration)
        #: Where those stood who wait, when the last cycle looked.
        self.queue_report = QueueReport(None, 0.0)
        self._rules: LabRules | None = None
        self._standing: Mapping[tuple[str, str], float] = {}
        self._ranked_at = 0.0
        #: Jobs that are not placed before a moment to come.
        self._paused: dict[int, float] = {}
        #: Jobs that are stopped, and wait for their place.
        self._stopped: set[int] = set()
        self._withheld: frozenset[str] = frozenset()
        #: What idle sessions' GPU state keeps from jobs, or has to move for them.
        self._offer = Offer()
        self._reserved: Sequence[Reservation] = ()
        #: Why nothing starts, or None.
        self._halt: Reason | None = None
        self._looked_at = 0.0
        #: Jobs that came into the line since the last cycle: they get their place at once.
        self._newcomers: list[int] = []
        #: Attempts that are written down and that the engine does not know yet.
        self._unstarted: deque[tuple[Job, TaskSpec]] = deque()

    def holding(self) -> tuple[Holding, ...]:
        """The jobs that hold resources now, for those who only look."""
        return self._queue.all_held

    def recover(self, now: float) -> tuple[Sequence[tuple[Attempt, Launch, str]], Sequence[Job]]:
        """Take up what an earlier server left: the attempts to adopt, and the jobs whose end or place somebody wants."""
        adopted, wanted = [], []
        self._held = self._settings.held()
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
            since = (job.started_at or now if job.handed_over else row.leased_at) + job.suspended_seconds
            if job.stopped or job.suspended_at is not None:
                # Charged for as long as it ran, and not since then.
                since += now - (job.suspended_at or now)
                self.use.put(replace(job, preemption=None), now=now, since=since, borrowed=row.lease_seconds)
            else:
                self.use.put(job, now=now, since=since, borrowed=row.lease_seconds)
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
        moments = list(self._paused.values())
        if self._preempting.again_at is not None:
            moments.append(self._preempting.again_at)
        if self._freed:
            moments.append(self._looked_at)
        if self._positions.again_at is not None:
            moments.append(self._positions.again_at)
        if self._unstarted:
            moments.append(self._looked_at + RETRY_SECONDS)
        if (again := self._submit_limits.next_at()) is not None:
            moments.append(again)
        if (self._withheld or self._offer.blocked) and (self._queue.waiting or self._stopped):
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
            self.calibration.told(self.queue_report.answered.popleft(), self.queue_report.now)
        while news.jobs:
            self._take_in(news.jobs[0], now)
            del news.jobs[0]
        self._hold_back(now)
        self.before_place.hear(news.observations, now)
        self._record(news.observations, now)
        news.observations.clear()
        self._launch(now)
        self._let_in(now)
        self._start_what_fits(now)

    def _let_in(self, now: float) -> None:
        """Those who waited for others come into the line, or can never start any more; then those who waited for them."""
        while self._freed:
            job = self._dependents.job(self._freed[0])
            if job is not None:
                self._put(job, now)
                self._newcomers.append(job.id)
            self._freed.popleft()
        for job in self.before_place.turn(now, self._settings.halted()):
            self._put(job, now)
            self._newcomers.append(job.id)

    def _hold_back(self, now: float) -> None:
        """Jobs of those whom an administrator has suspended leave the line; those of who goes on come back into it."""
        held = self._settings.held()
        if held is self._held:
            return
        self._held = held
        for waiting in [one for one in self._queue.waiting.values() if one.owner in held]:
            if (job := self._queue.job(waiting.id)) is not None:
                self._put(job, now)
        for job in [one for one in self._aside.values() if one.owner not in held]:
            self._put(job, now)
            self._newcomers.append(job.id)

    def _set_aside(self, job: Job) -> None:
        self._aside[job.id] = job
        self._queue.set_aside(job.id)
        self._placer.forget(job.id)
        self._paused.pop(job.id, None)
        self._positions.forget(job.id)

    def _withdraw(self, job: Job, now: float) -> None:
        """What the job waits for can never happen."""
        message = f"{describe_dependency(read_dependency(job.dependency))} That can never be any more."
        reason = Reason(code="DependencyNeverSatisfied", message=message)
        after = self._jobs.request_cancel(job.id, by="the lab", reason=reason, now=now, outbox=self._settings.withdrawal)
        if after is not None and after.state.ended:
            self._put(after, now)

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
        changes = [self._changes.of(job, observation, now) for job, observation in fresh]
        written = self._changes.write(changes, now)
        refused = [job for job in written if is_refused(job)]
        for job in refused:
            self._put(job, now)
        if refused and self._rules is None:
            self._refused_before += refused
        elif refused:
            # Before those that have ended are reported: what they leave is room.
            self._submit_limits.given_back(refused, now)
        for job in written:
            if not is_refused(job):
                self._put(job, now, not_before=now + RETRY_SECONDS if job.state is JobState.PENDING else 0.0)
        for (job, observation), change in zip(fresh, changes, strict=True):
            self._queue.seen(job.id, offset=change.offset, log_size=change.log_size)
            if change.ended_at is not None:
                over = change.state is None or change.state.ended
                self._engine.forget(observation.job_id, observation.attempt, over=over)

    def _put(self, job: Job, now: float, not_before: float = 0.0) -> None:
        verdict = self._dependents.verdict(job)
        if verdict is Verdict.OPEN:
            return
        if verdict is Verdict.NEVER:
            self._withdraw(job, now)
            return
        if job.state is JobState.PENDING and job.owner in self._held:
            self._set_aside(job)
            return
        self._aside.pop(job.id, None)
        if self.before_place.keeps(job, now):
            self._queue.set_aside(job.id)
            self._placer.forget(job.id)
            return
        known = self._queue.job(job.id)
        entry = self._queue.put(job, now=now, not_before=not_before)
        if not isinstance(entry, Holding):
            self._expected_ends.forget(job.id)
        kept = self._queue.kept(job.id)
        if kept is None and known is not None and known.stopped:
            self._placer.forget(kept_id(job.id))
        if entry is None:
            self._placer.forget(job.id)
            self.calibration.forget(job.id)
            if known is not None:  # news of an end may come twice
                learn(self.run_times, (job,))
            self._changes.forget(job.id)
            self._positions.forget(job.id)
        elif isinstance(entry, Holding):
            self._placer.hold(self._due(entry, now))
            self.calibration.started(job.id, now)
        else:
            self._placer.wait(self._expected(entry))
        if kept is not None:
            self._placer.hold(kept)
            if known is None or not known.stopped:
                self._newcomers.append(job.id)
        self.use.put(job, now=now)
        if job.stopped and kept is None:
            self._stopped.add(job.id)
        else:
            self._stopped.discard(job.id)
        if not_before > now:
            self._paused[job.id] = not_before
        else:
            self._paused.pop(job.id, None)
        self._freed.extend(other.id for other in self._dependents.after(job))

    def _start_what_fits(self, now: float) -> None:
        self._withheld, self._looked_at = self._engine.withheld(), now
        for job_id in [job_id for job_id, moment in self._paused.items() if moment <= now]:
            del self._paused[job_id]
        self._end_waits_for_devices(now)
        self._rank(now)
        if self._refused_before:
            self._submit_limits.given_back(self._refused_before, now, after_restart=True)
            self._refused_before.clear()
        self._submit_limits.turn(now)
        self._offer_devices(())
        self._reserved = tuple(self._settings.reserved())
        self._placer.reservations(self._reserved)
        for job in self._preempting.go_on(self._picture(now), now) if self._stopped else ():
            self._put(job, now)
        for held in self._expected_ends.overdue(now) if self._expects else ():
            self._placer.hold(held)
        self._halt = self._settings.halted()
        if self._halt is None:
            self._start_waiting(now)
        if self._settings.tells:
            self.queue_report = self.look(now)
            self._positions.tell(self.queue_report, self._newcomers, now)
        self._newcomers.clear()

    def _end_waits_for_devices(self, now: float) -> None:
        """Jobs whose own devices are free again are in line as others are."""
        waiting = {one: job for one, job in self._displaced.items() if one in self._paused}
        taken = self._taken() if waiting else set[str]()
        for job_id in [one for one, job in waiting.items() if taken.isdisjoint(job.devices)]:
            job = self._queue.job(job_id)
            if job is not None:
                self._put(job, now)
        self._displaced = {one: job for one, job in waiting.items() if one in self._paused}

    def _start_waiting(self, now: float) -> None:
        starts = self._place(now)
        if starts:
            self._carry_out(starts, now)
        qos = self._settings.rules.current.qos
        promised = [one.job for one in self._placer.promises if one.job.qos in qos]
        takers = [one for one in promised if qos[one.qos].preempts]
        changed = self._preempting.make_room(takers, lambda: self._picture(now), now)
        rotating = [one for one in [*self._displaced.values(), *promised] if qos[one.qos].rotate]
        if rotating and not changed:
            changed = self._preempting.take_turns(rotating, lambda: self._picture(now), now)
            if news := self._preempting.keeps():
                self._events.append(news, now=now)
        for job in changed:
            self._put(job, now)

    def _place(self, now: float) -> Sequence[Start]:
        """Place, and while host memory cannot take all idle state, again with other devices offered: each is, once."""
        starts = list(self._placer.place(now))
        offered = set(self._offer.moves)
        while untried := set(self._offer.instead) - offered:
            self._offer_devices(untried, starts)
            if untried.isdisjoint(self._offer.moves):
                break
            offered |= self._offer.moves.keys()
            starts += self._placer.place(now)
        return starts

    def _offer_devices(self, first: Collection[str], starts: Sequence[Start] = ()) -> None:
        """Tell the placer what it may give away, those devices `first` of which not all can be cleared."""
        nodes, found = self._settings.drained(self._engine.nodes()), self._engine.gpu_state()
        if found.states:
            taken = self._taken() | {uuid for start in starts for uuid in start.devices}
            devices = [device for node in nodes for device in node.devices if device.uuid not in self._withheld]
            self._offer = offer(found, devices, taken, first=first)
        else:
            self._offer = Offer()
        self._placer.nodes(nodes, self._withheld | self._offer.blocked.keys(), self._offer.moves)

    def _taken(self) -> set[str]:
        """Devices that jobs have."""
        return {uuid for held in self._queue.holding.values() for share in held.shares for uuid in share.devices}

    @property
    def _expects(self) -> bool:
        return self._rules is not None and self._rules.backfill_times == "expected"

    def _expected(self, job: Waiting) -> Waiting:
        return self._expected_ends.of_waiting(job) if self._expects and job.stopped_at is None else job

    def _due(self, held: Holding, now: float) -> Holding:
        return self._expected_ends.of_holding(held, now) if self._expects else held

    def look(self, now: float) -> QueueReport:
        """Where everybody stands who waits."""
        corrections = self.calibration.corrections
        outcome = self._placer.look(now, blocked=self._offer.blocked)
        return QueueReport(outcome, now, self.run_times.remaining, corrections=corrections, halt=self._halt)

    def _picture(self, now: float) -> Snapshot:
        rules = self._settings.rules.current
        return Snapshot(
            nodes=self._settings.drained(self._engine.nodes()),
            qos=rules.qos,
            waiting=tuple(map(self._expected, self._queue.waiting.values())),
            holding=tuple(self._due(held, now) for held in self._queue.all_held),
            withheld=self._withheld | self._offer.blocked.keys(),
            blocked=self._offer.blocked,
            moves=self._offer.moves,
            age_weight=rules.age_weight,
            standing=self._standing,
            share_weight=rules.share_weight,
            size_weight=rules.size_weight,
            partitions=rules.partitions,
            reservations=self._reserved,
            promises=rules.promises,
            submit_limits=self._placer.limits.submit_limits,
        )

    def _rank(self, now: float) -> None:
        """Put the queue in the order of the present rules and of who has used less of their share.

        Standings change slowly, so they are not worked out in every cycle.
        """
        rules = self._settings.rules.current
        newcomers = [self._queue.job(job_id) for job_id in self._newcomers]
        strange = any(job is not None and (job.account, job.owner) not in self._standing for job in newcomers)
        stale = rules.share_weight > 0 and (strange or now >= self._ranked_at + self._settings.rank_seconds)
        # Nobody is ahead of anybody where one job waits.
        if rules is self._rules and not (stale and len(self._queue.waiting) > 1):
            return
        standing: Mapping[tuple[str, str], float] = {}
        if rules.share_weight > 0:
            found = self.use.standings(now, self._queue.line)
            standing = {(one.account, one.user): one.factor for one in found}
        self._ranked_at = now
        if rules is not self._rules or standing != self._standing:
            again = rules.backfill_times != (self._rules.backfill_times if self._rules is not None else "walltime")
            again = again or (self._rules is not None and _short_first(rules) != _short_first(self._rules))
            turned = self._rules is not None and _rotate(rules) != _rotate(self._rules)
            self._rules, self._standing = rules, standing
            self._placer.rules(rules.qos, order_of(rules, standing), rules.partitions, promises=rules.promises)
            if again:
                self._plan_anew(now)
            if turned:
                for job in [self._queue.job(job_id) for job_id in [*self._stopped, *self._queue.waiting]]:
                    if job is not None and job.stopped:
                        self._put(job, now)

    def _late_by(self, job: Waiting) -> float:
        qos = self._settings.rules.current.qos.get(job.qos)
        if qos is None or not qos.short_first:
            return 0.0
        return late_by(job, qos.short_first, self.run_times.expect(job.owner, job.name, job.resources.time))

    def _rotate(self, qos: str) -> int:
        found = self._settings.rules.current.qos.get(qos)
        return 0 if found is None else found.rotate

    def _plan_anew(self, now: float) -> None:
        """Backfill, or the order, goes by other times than before."""
        self._queue.look_again()
        for job in self._queue.waiting.values():
            self._placer.wait(self._expected(job))
        for held in self._queue.holding.values():
            self._placer.hold(self._due(held, now))

    def _carry_out(self, starts: Sequence[Start], now: float) -> None:
        starts = self._go_on_at(self._to_own_devices(starts, now), now)
        orders = [
            StartOrder(job_id=start.job_id, node=start.node, devices=start.devices, others=start.others) for start in starts
        ]
        try:
            started = self._jobs.start(orders, now=now)
        except Exception:
            # Nothing was written: everybody is in line again.
            for start in starts:
                self._placer.wait(self._expected(self._queue.waiting[start.job_id]))
            raise
        for job_id in {start.job_id for start in starts} - {job.id for job, _ in started}:
            self._placer.forget(job_id)  # cancelled meanwhile: the news of it is on its way
        for job, _ in started:
            self._put(job, now)
            self._positions.forget(job.id)
        self._unstarted.extend(started)
        self._launch(now)

    def _to_own_devices(self, starts: Sequence[Start], now: float) -> Sequence[Start]:
        """Jobs whose GPU state comes back to certain devices go on there, or wait; the placer knows only how many there are."""
        own = {one.job_id: devices for one in starts if (devices := self._queue.waiting[one.job_id].devices)}
        if not own:
            return starts
        taken = self._taken()
        types = {device.uuid: device.type for node in self._engine.nodes() for device in node.devices}
        found, waits = on_own_devices(starts, own, taken | self._withheld | self._offer.blocked.keys(), types)
        given = {start.job_id: start for start in found}
        for start in starts:
            if given.get(start.job_id) != start:
                self._placer.forget(start.job_id)
        for job_id in waits:
            job = self._queue.job(job_id)
            assert job is not None  # the placer got it from the queue
            self._put(job, now, not_before=now + _REFUSED_SECONDS)
            self._displaced[job_id] = self._queue.waiting[job_id]
        return found

    def _go_on_at(self, starts: Sequence[Start], now: float) -> Sequence[Start]:
        """Jobs that were stopped have their next turn, one by one; return the starts of the others."""
        left = list(starts)
        try:
            for start in [one for one in starts if self._queue.kept(one.job_id) is not None]:
                job = self._preempting.go_on_at(start, now)
                left.remove(start)
                if job is not None:
                    self._put(job, now)
                    self._positions.forget(job.id)
                else:  # cancelled meanwhile: the news of it is on its way
                    self._placer.wait(self._expected(self._queue.waiting[start.job_id]))
        except Exception:
            for start in left:
                self._placer.wait(self._expected(self._queue.waiting[start.job_id]))
            raise
        return left

    def _launch(self, now: float) -> None:
        """Tell the engine of what has been written down; what is left when the database fails, the next cycle tells it of."""
        nodes = self._engine.nodes() if self._unstarted else ()
        while self._unstarted:
            job, task = self._unstarted[0]
            try:
                launch = self._build(job, task, nodes)
                if launch.element is not None and len(self._unstarted) > 1:
                    following = self._unstarted[1][0]
                    same = following.element is not None and following.element.array_id == launch.element.array_id
                    launch = replace(launch, more_elements=same and following.node == job.node)
                self._engine.start(launch, token=job_token(self._settings.secret, job.id, job.attempt))
                known = self._queue.job(job.id)
                if known is not None and known.cancelled_by is not None:  # asked for before the engine knew of it
                    self._engine.cancel(job.id, job.attempt, by=known.cancelled_by)
            except Unavailable as error:
                self._not_started(job, JobState.PENDING, _refusal(job, error), now)
            except Exception as error:  # noqa: BLE001 - after any error, this job must not stay half started
                _log.exception("Job %d could not be started.", job.id)
                self._not_started(job, JobState.FAILED, Reason(code="LaunchFailed", message=str(error)), now)
            self._unstarted.popleft()

    def _build(self, job: Job, task: TaskSpec, nodes: Sequence[Node]) -> Launch:
        launch = build_launch(job, task, nodes, self._settings.launch, self._settings.rules.current.qos.get(job.qos))
        staged = self.before_place.found(job.id)
        return launch if staged is None else replace(launch, staged=staged)

    def _is_here(self, job: Job) -> bool:
        """False where the lab's own machine prepares nothing for jobs of this partition."""
        partition = self._settings.rules.current.partitions.get(job.partition)
        return partition is None or partition.capabilities.stage_in

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
        for after in self._changes.write([change], now):
            self._put(after, now, not_before=now + _REFUSED_SECONDS if state is JobState.PENDING else 0.0)


def _short_first(rules: LabRules) -> Mapping[str, float]:
    return {name: qos.short_first for name, qos in rules.qos.items()}


def _rotate(rules: LabRules) -> Mapping[str, int]:
    return {name: qos.rotate for name, qos in rules.qos.items()}


def _refusal(job: Job, error: Unavailable) -> Reason:
    if isinstance(error, StorageFull):
        return Reason(code="StorageFull", message=str(error))
    return Reason(code="DeviceBusy" if job.devices else "ReqNodeNotAvail", message=str(error))
