"""When waiting jobs will start: nine courses of events, with run times as they may turn out.

What is submitted later and goes ahead (a more urgent class, a better standing) is not foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.domain.expectation import Expect
from carrel.core.policy.course import Course
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
