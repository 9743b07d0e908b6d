"""Outputs that could not be stored when a job ended are stored when somebody asks for them again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from carrel.core.control.ports import Collected, JobStore
from carrel.core.domain.errors import Conflict, Invalid, NotFound, StorageFull, Unavailable
from carrel.core.domain.job import Job, collected

#: Jobs of one owner whose outputs are collected at once. Each takes one of the lab's threads for as long as its owner's disk, or
#: their deputy on a cluster, needs for it.
_MOST_AT_ONCE = 4


class WorkDirectories(Protocol):
    """The working directories of attempts that are over, wherever they are."""

    def store(self, job: Job) -> Collected:
        """Store what the job's patterns name. Raises `NotFound` when there is no working directory any more."""

    def remove(self, job: Job) -> None:
        """Nothing is left there that anybody needs."""


class Collecting:
    """Called from any thread; of one job once at a time."""

    def __init__(self, jobs: JobStore, directories: WorkDirectories) -> None:
        self._jobs = jobs
        self._directories = directories
        self._lock = threading.Lock()
        #: Jobs that are being collected, and whose they are.
        self._busy: dict[int, str] = {}

    def collect(self, job: Job) -> Collected:
        """Store what the last attempt left, and write it down; then its working directory goes. Again is harmless.

        Raises `StorageFull` or `Unavailable` when not everything could be stored: what could be is written down all the same.
        """
        _check(job)
        with self._alone(job):
            try:
                found = self._directories.store(job)
            except NotFound:
                row = self._jobs.attempt(job.id, job.attempt)
                if row is not None and row.uncollected:
                    raise
                return Collected(files=(), notes=("There was nothing left to collect.",))
            message = job.reason.message if found.left else collected(job.reason.message, job.id)
            self._jobs.collect(job.id, job.attempt, found.files, left=found.left, message=message)
            if not found.notes:
                self._directories.remove(job)
        if found.failure is not None:
            full = found.failure.code == "StorageFull"
            raise (StorageFull if full else Unavailable)(found.failure.message, remedy="What was stored before stays; try again.")
        return found

    @contextmanager
    def _alone(self, job: Job) -> Iterator[None]:
        with self._lock:
            if job.id in self._busy:
                raise Conflict(f"The outputs of job {job.id} are being collected already.", remedy="Wait until that is done.")
            if (most := list(self._busy.values()).count(job.owner)) >= _MOST_AT_ONCE:
                raise Conflict(
                    f"The outputs of {most} jobs of {job.owner} are being collected.", remedy="Wait until one is done."
                )
            self._busy[job.id] = job.owner
        try:
            yield
        finally:
            with self._lock:
                self._busy.pop(job.id, None)


def _check(job: Job) -> None:
    if not job.state.ended:
        raise Conflict(f"Job {job.id} is {job.state}.", remedy="Its outputs are stored when it ends; collect what was not then.")
    if job.kind.value == "session":
        raise Invalid(f"Job {job.id} is a session.", remedy="Its files are where they were: sessions store no outputs.")
    if not job.attempt:
        raise NotFound(f"Job {job.id} never started, so it has no outputs.")
