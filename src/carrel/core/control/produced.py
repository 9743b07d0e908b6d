"""What jobs produced: outputs, logs, and the record that explains a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from carrel.core.control.collecting import Collecting
from carrel.core.control.lab_files import LabFiles, blob_file, lock_text
from carrel.core.control.ports import Collected, JobStore
from carrel.core.control.views import LogChunk
from carrel.core.domain.comparison import Verification
from carrel.core.domain.errors import NotFound
from carrel.core.domain.job import Job
from carrel.core.domain.launch import StoredFile
from carrel.core.domain.serial import to_plain
from carrel.core.domain.task import TaskSpec
from carrel.core.domain.units import format_size
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action
from carrel.core.spool.course import Course, read_course
from carrel.core.spool.foreign import NOT_THERE, is_digest, open_regular


class FindJob(Protocol):
    """Finds a job with which its caller may do something; raises `NotFound` or `Denied` otherwise."""

    def __call__(self, caller: Caller, job_id: int, action: Action = Action.SEE_JOB) -> Job:
        """Return the job."""


class Produced:
    """What callers may have of what jobs produced."""

    def __init__(
        self,
        jobs: JobStore,
        files: LabFiles,
        collecting: Collecting,
        *,
        lab_id: str,
        job: FindJob,
        task: Callable[[Caller, int], TaskSpec],
        refused: Callable[[int], Sequence[str]],
        verified: Callable[[int], Verification | None],
    ) -> None:
        """`refused`: what the tracking server said of things about a job that it refused for good; `verified`: what came of
        repeating it."""
        self._jobs, self._files, self._collecting, self._lab_id = jobs, files, collecting, lab_id
        self._job, self._task, self._refused, self._verified = job, task, refused, verified

    def outputs(self, caller: Caller, job_id: int) -> Sequence[StoredFile]:
        """Stored outputs of the last attempt."""
        job = self._job(caller, job_id, Action.READ_JOB)
        return self._jobs.outputs(job_id, job.attempt)

    def collect_outputs(self, caller: Caller, job_id: int) -> Collected:
        """Store what the last attempt left in its working directory because it could not be stored at its end."""
        return self._collecting.collect(self._job(caller, job_id, Action.CHANGE_JOB))

    def blob_path(self, caller: Caller, job_id: int, path: str) -> Path:
        """The file that holds the output `path` of the job."""
        job = self._job(caller, job_id, Action.READ_JOB)
        file = self._jobs.output(job_id, job.attempt, path)
        if file is None:
            raise NotFound(f'Job {job_id} has no output "{path}".', remedy=f"`carrel outputs {job_id} --list` shows all.")
        if file.removed_at is not None:
            when = datetime.fromtimestamp(file.removed_at, UTC).date().isoformat()
            raise NotFound(
                f'The content of "{path}" was given up on {when}; its digest is {file.digest}.',
                remedy=f"`carrel rerun {job_id}` makes it again.",
            )
        return blob_file(self._files.blobs, file.digest)

    def log_range(
        self, caller: Caller, job_id: int, *, attempt: int | None = None, offset: int = 0, limit: int = 1 << 20
    ) -> LogChunk:
        """Up to `limit` bytes of the log of an attempt (default: the last), from `offset`; a negative one counts from the end."""
        job = self._job(caller, job_id, Action.READ_JOB)
        number = job.attempt if attempt is None else attempt
        if number < 0 or number > job.attempt:
            raise NotFound(f"Job {job_id} has no attempt {number}.", remedy=f"It had {job.attempt}.")
        try:
            with open_regular(self._files.spool.attempt(job_id, number).log) as file:
                size = file.seek(0, 2)
                start = max(0, size + offset) if offset < 0 else min(offset, size)
                file.seek(start)
                return LogChunk(attempt=number, offset=start, data=file.read(limit), size=size)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            if job.state.ended and not self._files.spool.attempt(job_id, number).path.exists():
                self._check_log_was_empty(job_id, number)
            return LogChunk(attempt=number, offset=0, data=b"", size=0)

    def course(self, caller: Caller, job_id: int, attempt: int) -> Course:
        """The steps of an attempt with their moments, and samples of its use; nothing once its log is not kept any more."""
        self._job(caller, job_id, Action.READ_JOB)
        return read_course(self._files.spool.attempt(job_id, attempt).journal)

    def _check_log_was_empty(self, job_id: int, number: int) -> None:
        row = self._jobs.attempt(job_id, number)
        if row is not None and row.log_size:
            raise NotFound(
                f"The log of job {job_id} ({format_size(row.log_size)}) is not kept any more.",
                remedy="The lab removes logs some time after the end of their job (keep_logs).",
            )

    def record(self, caller: Caller, job_id: int) -> dict[str, Any]:
        """Everything needed to explain the job and to repeat it."""
        job, task = self._job(caller, job_id, Action.READ_JOB), self._task(caller, job_id)
        attempts = []
        for row in self._jobs.attempts(job_id):
            plain = to_plain(row)
            plain["outputs"] = [to_plain(file) for file in self._jobs.outputs(job_id, row.number)]
            if row.environment_lock is not None:
                lock = blob_file(self._files.blobs, row.environment_lock) if is_digest(row.environment_lock) else None
                plain["environment_lock_text"] = lock_text(lock) if lock is not None else None
            attempts.append(plain)
        # What the tracking server would not take is said here: the lab's own record is complete in any case.
        refused = list(self._refused(job_id))
        verified = self._verified(job_id)
        return {
            "lab": self._lab_id,
            "job": to_plain(job),
            "task": to_plain(task),
            "attempts": attempts,
            **({"verification": to_plain(verified)} if verified is not None else {}),
            **({"refused_by_tracking": refused} if refused else {}),
        }
