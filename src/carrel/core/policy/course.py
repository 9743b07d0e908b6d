"""One course of events: the policy itself, played on into the future, with the turns of classes that rotate.

Nothing is submitted there that is not in line now. Everything else is as it will be: backfill, limits, promises, and who is
stopped for whom (`rotation`). A job that is stopped there waits in line again, with what is left of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from carrel.core.domain.node import SIMULATED
from carrel.core.domain.placement import Holding, Start, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.policy.outcome import Outcome
from carrel.core.policy.placer import Placer
from carrel.core.policy.rotation import LEVELS, Turn, after_running, kept_id, level, rotates, take_turns, turn_of
from carrel.core.policy.scenario import Scenario

#: Stops that a course foresees. What comes after them is played as if nobody took turns, so that its cost has a bound.
MOST_STOPS = 200


class _Run:
    """A job that runs in a class that rotates."""

    __slots__ = ("_at", "_begun", "_rotate", "over_at", "turn")

    def __init__(self, turn: Turn, at: float, service: QoS) -> None:
        """`turn` is how it is at a moment, Unix seconds."""
        #: How it is by its present level; what it has had in seconds is known to `stopped` alone.
        self.turn = turn
        #: When it may be stopped.
        self.over_at = turn.since + turn_of(turn, service)
        self._begun, self._at, self._rotate = turn.again, at, service.rotate

    def look(self, now: float) -> Turn:
        """The turn at a later moment. Its place in line changes with its level only."""
        begun = self._begun
        if level(begun.ran + now - self._at, begun.resources.total_gpus, self._rotate) != self.turn.again.level:
            self.turn = replace(self.turn, again=self.stopped(now))
        return self.turn

    def stopped(self, now: float) -> Waiting:
        """The job as it is in line when it is stopped now."""
        return after_running(self._begun, now - self._at, self._rotate, now)

    def moments(self) -> Iterable[float]:
        """When time alone changes whose turn it is."""
        yield self.over_at
        gpus = max(1, self._begun.resources.total_gpus)
        yield from (self._at + step * self._rotate / gpus - self._begun.ran for step in LEVELS)


class Course:
    """One course of events, played as far as somebody asks."""

    def __init__(self, outcome: Outcome, scenario: Scenario, turns: Iterable[Turn] = ()) -> None:
        """`turns` are the jobs that run in classes that rotate, as they are now."""
        picture, self.now = outcome.picture, outcome.now
        self._picture, self._order, self._scenario = picture, outcome.order, scenario
        self._stops_left = MOST_STOPS
        self._jobs = {job.id: job for job in picture.waiting}
        self._starts: dict[int, float] = {}
        self._placer = Placer.of(picture, outcome.order)
        self._held = {held.id: held for held in picture.holding}
        self._runs = {turn.held.id: self._run(turn) for turn in turns if turn.held.id in self._held}
        self._movable = {run.turn.held.qos for run in self._runs.values() if run.turn.held.suspendable}
        #: When each job that runs will end; another moment in the heap is of the past.
        self._ends = {held.id: max(self.now, scenario.end(held)) for held in picture.holding if not _is_kept(held)}
        #: Seconds that those run on who were stopped here.
        self._left: dict[int, float] = {}
        for job_id, run in self._runs.items():
            if run.turn.held.leaving:
                # Its turn is over: it is out as soon as its state is.
                stays = replace(run.turn.held, ends_by=self.now + run.turn.again.longest)
                self._left[job_id] = max(1.0, scenario.end(stays) - self.now)
                self._ends[job_id] = min(run.turn.held.ends_by, self.now + run.turn.moves)
        self._moments = [(end, job_id) for job_id, end in self._ends.items()]
        for run in self._runs.values():
            self._moments += [(moment, 0) for moment in run.moments() if moment > self.now]
        self._moments += [(job.not_before, 0) for job in picture.waiting if job.not_before > self.now]
        # Where some may not run now, they may when a window is over.
        self._moments += [(window.end, 0) for window in picture.reservations if window.end > self.now]
        heapify(self._moments)
        self._place()

    def start_of(self, job_id: int) -> float | None:
        """When a job starts, or goes on, for the first time from now on; None when it never does."""
        while job_id not in self._starts and self._moments:
            self.now = self._moments[0][0]
            while self._moments and self._moments[0][0] <= self.now:
                moment, other = heappop(self._moments)
                if self._ends.get(other) == moment:
                    self._over(other)
            self._place()
        return self._starts.get(job_id)

    def _place(self) -> None:
        while True:
            for start in self._placer.place(self.now):
                self._begin(start)
            stopped = self._whose_turn_is_over()
            for job_id in stopped:
                self._stop(job_id)
            if not stopped:
                return

    def _begin(self, start: Start) -> None:
        job, now = self._jobs[start.job_id], self.now
        self._starts.setdefault(job.id, now)
        seconds = self._left.pop(job.id) if job.id in self._left else self._scenario.seconds(job)
        self._ends[job.id] = now + seconds
        heappush(self._moments, (now + seconds, job.id))
        held = self._held[job.id] = Holding(
            id=job.id,
            owner=job.owner,
            account=job.account,
            qos=job.qos,
            name=job.name,
            partition=job.partition,
            array=job.array,
            resources=job.resources,
            node=start.node,
            devices=start.devices,
            others=start.others,
            started_at=now,
            ends_by=now + job.longest,
            preemptible=job.preemptible,
            suspendable=self._can_stop(job, start),
        )
        if rotates(self._picture.qos, job.qos):
            run = self._runs[job.id] = self._run(Turn(held=held, again=job, since=now))
            for moment in run.moments():
                heappush(self._moments, (moment, 0))

    def _run(self, turn: Turn) -> _Run:
        return _Run(turn, self.now, self._picture.qos[turn.held.qos])

    def _can_stop(self, job: Waiting, start: Start) -> bool:
        """True of a job that can be stopped as far as is known: where GPUs are real, if others of its class can."""
        partition = self._picture.partitions.get(job.partition)
        if start.others or not job.preemptible or (partition is not None and partition.cluster):
            return False
        simulated = all(uuid.startswith(SIMULATED) for uuid in start.devices)
        return simulated or job.stopped_at is not None or job.qos in self._movable

    def _over(self, job_id: int) -> None:
        """A job ends; or it is out at the end of its turn, which had been decided before."""
        held = self._held.get(job_id)
        if held is not None and held.leaving and job_id in self._runs:
            self._stop(job_id)
            return
        for number in (job_id, kept_id(job_id)):
            self._placer.forget(number)
            self._held.pop(number, None)
        self._runs.pop(job_id, None)
        del self._ends[job_id]

    def _whose_turn_is_over(self) -> Sequence[int]:
        """Who is stopped now; nobody where it is nobody's turn."""
        qos, now = self._picture.qos, self.now
        promised = [one.job for one in self._placer.promises if rotates(qos, one.job.qos)] if self._stops_left > 0 else []
        wanted = {job.qos for job in promised}
        over = [run.look(now) for run in self._runs.values() if run.over_at <= now and run.turn.held.qos in wanted]
        if not over:
            return ()
        picture = replace(self._picture, waiting=(), holding=tuple(self._held.values()))
        stopped = [one.job_id for one in take_turns(picture, promised, over, now, self._order, self._placer.fit.rooms)]
        self._stops_left -= len(stopped)
        return stopped

    def _stop(self, job_id: int) -> None:
        """The job keeps its memory and waits in line, with what is left of it."""
        held, run, now = self._held.pop(job_id), self._runs.pop(job_id), self.now
        self._left.setdefault(job_id, max(1.0, self._ends[job_id] - now))
        del self._ends[job_id]
        self._placer.forget(job_id)
        again = self._jobs[job_id] = run.stopped(now)
        number = kept_id(job_id)
        if number not in self._held:
            memory = held.resources.kept_while_suspended
            kept = replace(held, id=number, qos="", resources=memory, devices=(), others=(), suspended=True)
            self._held[number] = kept
            self._placer.hold(kept)
        self._placer.wait(again)


def _is_kept(held: Holding) -> bool:
    """True of what is kept for a job that waits for its next turn: it goes with the job."""
    return held.suspended and held.id < 0
