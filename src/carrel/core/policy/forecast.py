"""When waiting jobs will start: nine courses of events, with run times as they may turn out.

What is submitted later and goes ahead (a more urgent class, a better standing) is not foreseen.
"""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.domain.expectation import Expect
from carrel.core.policy.course import Course
from carrel.core.policy.outcome import Outcome
from carrel.core.policy.rotation import Turn, rotates
from carrel.core.policy.scenario import SCENARIOS, Expectations, Scenario


class Forecast:
    """All that may happen, as far as somebody asks."""

    def __init__(self, outcome: Outcome, expect: Expect, turns: Sequence[Turn] = ()) -> None:
        """`turns` are the jobs that run in classes that rotate."""
        self._expectations = Expectations(outcome.picture.holding, outcome.now, expect)
        self._outcome = outcome
        self._turns = turns
        self._courses: list[Course] = []

    def between(self, job_id: int) -> tuple[float, float, float] | None:
        """When a job should start: after which moment, at which, before which, with a probability of 80 %; None: unknown."""
        if not self._expectations.any_known:
            return None
        starts = sorted(start for course in self._played(SCENARIOS) if (start := course.start_of(job_id)) is not None)
        if len(starts) < SCENARIOS:
            return None
        return starts[0], starts[SCENARIOS // 2], starts[-1]

    def by_walltimes(self, job_id: int) -> float | None:
        """When a job should start if nothing is known of run times and jobs take turns; None: nobody takes turns, or unknown."""
        if self._expectations.any_known or not any(rotates(self._outcome.picture.qos, turn.held.qos) for turn in self._turns):
            return None
        (course,) = self._played(1)
        return course.start_of(job_id)

    def _played(self, many: int) -> Sequence[Course]:
        if not self._courses:
            scenarios = (Scenario(number, self._expectations, self._outcome.now) for number in range(many))
            self._courses = [Course(self._outcome, scenario, self._turns) for scenario in scenarios]
        return self._courses
