"""Previews: what other rules would have done to the jobs of the last days."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from anyio import to_thread

from carrel.core.control.history import newest_ended
from carrel.core.control.lab import Lab
from carrel.core.control.rules import ChangedRules, RuleChanges
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job
from carrel.core.domain.user import Caller
from carrel.lab.gateway.children import Child
from carrel.lab.gateway.views import moment
from carrel.simulate.preview import TIME_LIMIT
from carrel.simulate.traces.history import recorded_trace
from carrel.wire.v1 import RulesPreview

#: Jobs that are simulated, at most: the newest. Both simulations of them take 20 to 30 s.
MOST_JOBS = 5_000


class RulePreviews:
    """Answers what a change of rules would do."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        remedy = "`carrel simulate --what-if` takes the time that it needs."
        self._child = Child("simulation", "carrel.simulate.preview", time_limit=TIME_LIMIT, remedy=remedy)

    async def of(self, caller: Caller, changes: RuleChanges, days: int) -> RulesPreview:
        """Simulate the jobs that were submitted in the last `days` and have ended.

        Raises `Invalid` for the changes, and where there are no such jobs; `Unavailable` where it takes too long.
        """
        changed, runs = await to_thread.run_sync(self._read, caller, changes, days)
        trace = recorded_trace(runs, f"the last {days} days")
        nodes, now = self._lab.engine.nodes(), self._lab.administration.rules.current
        # What the child unpickles is the lab's own.
        found = await self._child.ask(pickle.dumps((trace, tuple(nodes), now, changed.rules)))
        if len(runs) == MOST_JOBS:
            found["notes"].insert(0, f"Of the jobs of the last {days} days, these are the newest {MOST_JOBS:,}.")
        since = moment(min(job.submitted_at for job, _ in runs))
        gpus = sum(len(node.devices) for node in nodes)
        return RulesPreview(changed=dict(changed.told), jobs=len(runs), since=since, gpus=gpus, **found)

    def _read(self, caller: Caller, changes: RuleChanges, days: int) -> tuple[ChangedRules, Sequence[tuple[Job, float]]]:
        changed = self._lab.administration.changed_rules(caller, changes)
        since = self._lab.clock() - days * 86400
        recorded = (job for job in newest_ended(self._lab.jobs_store, MOST_JOBS) if job.submitted_at >= since)
        runs = [(job, ran) for job in recorded if (ran := self._ran(job)) is not None]
        if not runs:
            raise Invalid(f"No job of the last {days} days has run and ended.", remedy="Take more days.")
        return changed, runs

    def _ran(self, job: Job) -> float | None:
        """Seconds of the last attempt: between attempts a job had nothing. None where it never ran."""
        times = job if job.attempt < 2 else self._lab.jobs_store.attempt(job.id, job.attempt)
        if times is None or times.started_at is None or times.ended_at is None:
            return None
        return max(0.0, times.ended_at - times.started_at)
