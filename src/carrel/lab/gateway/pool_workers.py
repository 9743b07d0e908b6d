"""Workers of pools are jobs like others, submitted for the pool's owner."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.control.lab import Lab
from carrel.core.domain.call import WorkerPool, WorkerPoolSpec
from carrel.core.domain.errors import NotFound
from carrel.core.domain.user import Caller
from carrel.lab.gateway.submission import Submissions
from carrel.wire.v1 import TaskRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkers:
    """Implements `carrel.core.control.pool_ports.Workers`."""

    lab: Lab
    submissions: Submissions

    def check(self, caller: Caller, pool: WorkerPoolSpec) -> None:
        """Raise what keeps such a worker from being submitted by the caller."""
        self.submissions.check(caller, TaskRequest.model_validate(pool.task))

    def start(self, pool: WorkerPool, key: str) -> int:
        """Submit a worker of the pool for its owner; the same key is the same job. Returns its number."""
        user = self.lab.people.get(pool.owner)
        if user is None:
            raise NotFound(f"There is no user {pool.owner} any more.")
        caller = Caller(user=user, accounts=self.lab.policy.accounts_of(user))
        submitted, _ = self.submissions.submit(caller, TaskRequest.model_validate(pool.spec.task), key, pool=pool.id)
        return submitted.job.id
