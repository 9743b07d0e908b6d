"""submitit's `helpers`."""

from carrel.client.submitit.checkpointing import Checkpointable, FunctionSequence
from carrel.client.submitit.helpers import CommandFunction, as_completed, clean_env, monitor_jobs
from carrel.client.submitit.job_environment import TorchDistributedEnvironment
from carrel.client.submitit.snapshot import RsyncSnapshot
from carrel.client.submitit.submission import DelayedSubmission

__all__ = [
    "Checkpointable",
    "CommandFunction",
    "DelayedSubmission",
    "FunctionSequence",
    "RsyncSnapshot",
    "TorchDistributedEnvironment",
    "as_completed",
    "clean_env",
    "monitor_jobs",
]
