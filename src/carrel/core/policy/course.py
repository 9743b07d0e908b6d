"""One course of events: the policy itself, played on into the future.

Nothing is submitted there that is not in line now, and nobody is preempted. Everything else is as it will be: backfill, limits,
promises.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from carrel.core.domain.placement import Start
from carrel.core.policy.placer import Placer
from carrel.core.policy.scenario import Scenario
from carrel.core.policy.situation import Outcome


class Course:
    """One course of events, played as far as somebody asks."""

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
