"""submitit's `core.core`."""

import carrel.wire  # noqa: F401 - so that a copy which travelled finds what it needs beside it
from carrel.client.submitit.batch import DelayedJob
from carrel.client.submitit.executor import Executor
from carrel.client.submitit.job import AsyncJobProxy, Job

__all__ = ["AsyncJobProxy", "DelayedJob", "Executor", "Job"]
