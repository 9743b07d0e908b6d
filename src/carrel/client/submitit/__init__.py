"""submitit's interface to jobs of the lab. A job that was submitted loads it, too, so the rest is loaded when it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carrel.client.submitit.checkpointing import Checkpointable, FunctionSequence
    from carrel.client.submitit.errors import FailedJobError, FailedSubmissionError, UncompletedJobError
    from carrel.client.submitit.executor import AutoExecutor, DebugExecutor, Executor, LocalExecutor, SlurmExecutor
    from carrel.client.submitit.job import Job
    from carrel.client.submitit.job_environment import JobEnvironment, TorchDistributedEnvironment
    from carrel.client.submitit.submission import DelayedSubmission

_WHERE = {
    "checkpointing": ("Checkpointable", "FunctionSequence"),
    "errors": ("FailedJobError", "FailedSubmissionError", "UncompletedJobError"),
    "executor": ("AutoExecutor", "DebugExecutor", "Executor", "LocalExecutor", "SlurmExecutor"),
    "job": ("Job",),
    "job_environment": ("JobEnvironment", "TorchDistributedEnvironment"),
    "submission": ("DelayedSubmission",),
}
__all__ = [
    "AutoExecutor",
    "Checkpointable",
    "DebugExecutor",
    "DelayedSubmission",
    "Executor",
    "FailedJobError",
    "FailedSubmissionError",
    "FunctionSequence",
    "Job",
    "JobEnvironment",
    "LocalExecutor",
    "SlurmExecutor",
    "TorchDistributedEnvironment",
    "UncompletedJobError",
]


def __getattr__(name: str) -> Any:
    for module, names in _WHERE.items():
        if name in names:
            return getattr(importlib.import_module(f"carrel.client.submitit.{module}"), name)
    raise AttributeError(f"carrel.submitit has no attribute {name!r}. It has: {', '.join(__all__)}.")
