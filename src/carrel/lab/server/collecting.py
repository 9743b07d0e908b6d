"""Where the working directories of attempts are that are over: in the lab's own spool, or in the hands of another Unix user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from carrel.core.control.ports import Collected
from carrel.core.domain.job import Job
from carrel.core.spool import Spool
from carrel.engines.deputy.engine import DeputyEngine
from carrel.node.runner.collecting import collect_outputs, remove_work


class LabWorkDirectories:
    """Implements `carrel.core.control.collecting.WorkDirectories`."""

    def __init__(
        self, spool: Spool, blobs: Path, limit: int, *, deputy_of: Callable[[Job], DeputyEngine | None] = lambda _job: None
    ) -> None:
        """`limit`: bytes of outputs that are stored of one attempt. `deputy_of` says in whose hands a job's files are."""
        self._spool = spool
        self._blobs = blobs
        self._limit = limit
        self._deputy_of = deputy_of

    def store(self, job: Job) -> Collected:
        """Store what the job's patterns name. Raises `NotFound` when there is no working directory any more."""
        deputy = self._deputy_of(job)
        if deputy is not None:
            found = deputy.collect(job.id, job.attempt, self._limit)
        else:
            found = collect_outputs(self._spool.attempt(job.id, job.attempt), self._blobs, self._limit)
        return Collected(files=tuple(found.files), notes=tuple(found.notes), failure=found.failure, left=found.left)

    def remove(self, job: Job) -> None:
        """Nothing is left there that anybody needs."""
        deputy = self._deputy_of(job)
        if deputy is not None:
            deputy.remove_work(job.id, job.attempt)
        else:
            remove_work(self._spool.attempt(job.id, job.attempt))
