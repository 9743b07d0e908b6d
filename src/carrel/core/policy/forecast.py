"""When waiting jobs will start: the policy itself, played on into the future with run times as they are expected.

Nothing is submitted there that is not in line now, so what comes later and goes ahead (a more urgent class, a better standing) is
not foreseen. In return everything else is as it will be: backfill, limits, promises.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from carrel.core.domain.expectation import Expect
from carrel.core.policy.outcome import Outcome
from carrel.core.policy.placer import Placer
from carrel.core.policy.scenario import SCENARIOS, Expectations, Scenario


class Course:
    """One course of events, played as far as somebody asks."""

    def __init__(self, outcome: Outcome, scenario: Scenario) -> None:
        picture, self.now = outcome.picture, outcome.now
        self._scenario = scenario
        self._jobs = {job.id: job for job in picture.waiting}
        self._starts: dict[int, float] = {}
        self._placer = Placer.of(picture, outcome.order)
        self._ends = [(max(self.now, scenario.end(held)), held.id) for held in picture.holding]
        self._ends += [(job.not_before, 0) for job in picture.waiting if job.not_before > self.now]
        # Where some may not run now, they may when a window is over.
        self._ends += [(window.end, 0) for window in picture.reservations if window.end > self.now]
        heapify(self._ends)
        self._place()

    def start_of(self, job_id: int) -> float | None:
        """When a job starts, or None when it never does."""
        while job_id not in self._starts and self._ends:
            self.now = self._ends[0][0]
            while self._ends and self._ends[0][0] <= self.now:
                self._placer.forget(heappop(self._ends)[1])
            self._place()
        return self._starts.get(job_id)

    def _place(self) -> None:
        for start in self._placer.place(self.now):
            self._starts[start.job_id] = self.now
            seconds = self._scenario.seconds(self._jobs[start.job_id])
            heappush(self._ends, (self.now + seconds, start.job_id))


class Forecast:
    """All that may happen, as far as somebody asks."""

    def __init__(self, outcome: Outcome, expect: Expect) -> None:
        self._expectations = Expectations(outcome.picture.holding, outcome.now, expect)
        self._outcome = outcome
        self._courses: list[Course] = []

    def between(self, job_id: int) -> tuple[float, float, float] | None:
        """When a job should start: after which moment, at which, before which, with a probability of 80 %; None: unknown."""
        if not self._expectations.any_known:
            return None
        if not self._courses:
            scenarios = (Scenario(number, self._expectations, self._outcome.now) for number in range(SCENARIOS))
            self._courses = [Course(self._outcome, scenario) for scenario in scenarios]
        starts = sorted(start for course in self._courses if (start := course.start_of(job_id)) is not None)
        if len(starts) < SCENARIOS:
            return None
        return starts[0], starts[SCENARIOS // 2], starts[-1]
