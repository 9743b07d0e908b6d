"""The cluster "debug": a function is called in this process, when somebody asks for its result."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, TypeVar

from carrel.client.submitit.errors import UncompletedJobError
from carrel.client.submitit.helpers import environment_variables
from carrel.client.submitit.job import Job
from carrel.client.submitit.job_environment import CLUSTER, DEBUG_JOB
from carrel.client.submitit.submission import DelayedSubmission

R = TypeVar("R")
_NUMBERS = itertools.count(1)


class DebugJob(Job[R]):
    """A call in this process. It begins when it is waited for, and its debugger and its prints are those of this process."""

    def __init__(self, folder: str | Path, submission: DelayedSubmission) -> None:
        super().__init__(folder, f"DEBUG_{os.getpid()}_{next(_NUMBERS)}")
        self._submission = submission
        self._cancelled = False
        self._error: BaseException | None = None

    def submission(self) -> DelayedSubmission:
        """What was submitted, itself."""
        return self._submission

    @property
    def state(self) -> str:
        """QUEUED before it is called, then DONE or FAILED; CANCELLED."""
        return self.get_info()["State"]

    def get_info(self, mode: str = "force") -> dict[str, str]:  # noqa: ARG002 - as that of a job
        """Number and state."""
        if self._cancelled:
            state = "CANCELLED"
        elif self._error is not None:
            state = "FAILED"
        else:
            state = "DONE" if self._submission.done() else "QUEUED"
        return {"JobID": self.job_id, "State": state}

    def done(self, force_check: bool = False) -> bool:  # noqa: ARG002 - as that of a job
        """Call the function if it was not called yet: True."""
        self.wait()
        return True

    def wait(self) -> None:
        """Call the function if it was not called yet."""
        if self._cancelled or self._error is not None or self._submission.done():
            return
        with environment_variables(**{CLUSTER: "debug", DEBUG_JOB: self.job_id}):
            try:
                self._submission.result()
            except Exception as error:  # noqa: BLE001 - whatever a function raises is its job's
                self._error = error

    def cancel(self, check: bool = True) -> None:  # noqa: ARG002 - as that of a job
        """Keep it from being called."""
        self._cancelled = True

    def results(self) -> list[R]:
        """What the function returns. Raises what it raises."""
        self.wait()
        if self._cancelled:
            raise UncompletedJobError(f"Job {self.job_id} was cancelled.")
        if self._error is not None:
            raise self._error
        return [self._submission.result()]

    def exception(self) -> Any:
        """What the function raised, itself, or None."""
        try:
            self.results()
        except Exception as error:  # noqa: BLE001 - the same
            return error
        return None

    def stdout(self) -> str | None:
        """None: it prints where this process does."""
        return None

    stderr = stdout

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __del__(self) -> None:
        """There is nothing to cancel."""
