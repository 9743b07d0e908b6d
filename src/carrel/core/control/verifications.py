"""What came of repeating a job is kept with it, and told to the tracking server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from carrel.core.control.ports import OutboxEntry, untold
from carrel.core.domain.comparison import Verification
from carrel.core.domain.job import Job
from carrel.core.domain.task import TaskSpec


class VerificationStore(Protocol):
    """Keeps the last one of each job. `carrel.lab.store.baselines.VerificationTable` is one, and has the promises."""

    def put(self, job_id: int, verification: Verification, outbox: Sequence[OutboxEntry], *, now: float) -> None: ...
    def get(self, job_id: int) -> Verification | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifications:
    """Thread-safe."""

    store: VerificationStore
    describe: Callable[[Job, TaskSpec, Verification], Sequence[OutboxEntry]] = untold

    def keep(self, job: Job, task: TaskSpec, verification: Verification) -> None:
        """Keep it with the job."""
        self.store.put(job.id, verification, self.describe(job, task, verification), now=verification.at)

    def of(self, job_id: int) -> Verification | None:
        """What came of repeating the job, or None."""
        return self.store.get(job_id)
