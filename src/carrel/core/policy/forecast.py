"""When waiting jobs will start: nine courses of events, with run times as they may turn out.

What is submitted later and goes ahead (a more urgent class, a better standing) is not foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from carrel.core.domain.expectation import Expect
from carrel.core.domain.placement import Start
from carrel.core.policy.placer import Placer
from carrel.core.policy.scenario import SCENARIOS, Expectations, Scenario
from carrel.core.policy.situation import Outcome


class Forecast:
    """All that may happen, as far as somebody asks."""

    def __init__(self, outcome: Outcome, expect: Expect) -> None:
        self._expectations = Expectations(outcome.picture.holding, outcome.now, expect)
        self._outcome = outcome
        self._courses: list[Course] = []
        self._longest: Course | None = None

    def between(self, job_id: int) -> tuple[float, float, float] | None:
        """When a job should start: after which moment, at which, before which, with a probability of 80 %; None: unknown."""
        if not self._expectations.any_known:
            return None
        starts = sorted(start for course in self._played() if (start := course.start_of(job_id)) is not None)
        if len(starts) < SCENARIOS:
            return None
        return starts[0], starts[SCENARIOS // 2], starts[-1]

    def by_walltimes(self, job_id: int) -> float | None:
        """When a job starts if every job uses its whole walltime; None when it never does."""
        if self._longest is None:
            nothing_known = Expectations((), self._outcome.now, lambda *_: None)
            self._longest = Course(self._outcome, Scenario(0, nothing_known, self._outcome.now))
        return self._longest.start_of(job_id)

    def _played(self) -> Sequence[Course]:
        if not self._courses:
            scenarios = (Scenario(number, self._expectations, self._outcome.now) for number in range(SCENARIOS))
            self._courses = [Course(self._outcome, scenario) for scenario in scenarios]
        return self._courses


class Course:
    """One course of events: the policy itself, played on into the future as far as somebody asks.

    Nothing is submitted there that is not in line now, and nobody is preempted. Everything else is as it will be.
    """

    def __init__(self, outcome: Outcome, scenario: Scenario) -> None:
        picture, self.now = outcome.picture, outcome.now
        self._scenario = scenario
        self._jobs = {job.id: job for job in picture.waiting}
        self._starts: dict[int, float] = {}
        self._placer = Placer.of(picture, outcome.order)
        self._moments = [(max(self.now, scenario.end(held)), held.id) for held in picture.holding]
        self._moments += [(job.not_before, 0) for job in picture.waiting if job.not_before > self.now]
        # Where some may not run now, they may when a window is over.
        self._moments += [(window.end, 0) for window in picture.reservations if window.end > self.now]
        heapify(self._moments)
        self._place()

    def start_of(self, job_id: int) -> float | None:
        """When a job starts; None when it never does."""
        while job_id not in self._starts and self._moments:
            self.now = self._moments[0][0]
            while self._moments and self._moments[0][0] <= self.now:
                _, over = heappop(self._moments)
                if over:
                    self._placer.forget(over)
            self._place()
        return self._starts.get(job_id)

    def _place(self) -> None:
        for start in self._placer.place(self.now):
            self._begin(start)

    def _begin(self, start: Start) -> None:
        job, now = self._jobs[start.job_id], self.now
        self._starts[job.id] = now
        heappush(self._moments, (now + self._scenario.seconds(job), job.id))
