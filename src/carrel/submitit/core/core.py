"""submitit's `core.core`."""

from carrel.client.submitit.batch import DelayedJob
from carrel.client.submitit.executor import Executor
from carrel.client.submitit.job import AsyncJobProxy, Job

__all__ = ["AsyncJobProxy", "DelayedJob", "Executor", "Job"]
