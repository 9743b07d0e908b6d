"""What can go wrong with a job, by submitit's names."""

from __future__ import annotations


class UncompletedJobError(RuntimeError):
    """The job ended without a result: it was cancelled, reached its walltime or was killed."""


class FailedJobError(UncompletedJobError):
    """The function raised; the message has the traceback."""


class FailedSubmissionError(RuntimeError):
    """The lab did not take the submission; the message says why, and what can be done."""
