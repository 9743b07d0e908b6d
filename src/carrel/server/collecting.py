"""Where the working directories of attempts are that are over."""

from __future__ import annotations

from pathlib import Path

from carrel.control.ports import Collected
from carrel.domain.job import Job
from carrel.runner.collecting import collect_outputs, remove_work
from carrel.spool import Spool


class LabWorkDirectories:
    """Those in the lab's own spool: implements `carrel.control.collecting.WorkDirectories`."""

    def __init__(self, spool: Spool, blobs: Path, limit: int) -> None:
        """`limit`: bytes of outputs that are stored of one attempt."""
        self._spool = spool
        self._blobs = blobs
        self._limit = limit

    def store(self, job: Job) -> Collected:
        """Store what the job's patterns name. Raises `NotFound` when there is no working directory any more."""
        found = collect_outputs(self._spool.attempt(job.id, job.attempt), self._blobs, self._limit)
        return Collected(files=tuple(found.files), notes=tuple(found.notes), failure=found.failure, left=found.left)

    def remove(self, job: Job) -> None:
        """Nothing is left there that anybody needs."""
        remove_work(self._spool.attempt(job.id, job.attempt))
