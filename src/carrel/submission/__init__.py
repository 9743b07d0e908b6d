"""What a task may ask for: one declaration, from which the command line, the client, the API and the task's files follow."""

from carrel.submission.engine_options import engine_options, read_engine_options
from carrel.submission.option import Kind, Option, option, options_of
from carrel.submission.resource_options import ResourceOptions
from carrel.submission.slurm_options import SlurmOptions
from carrel.submission.task_options import TaskArguments, TaskOptions

__all__ = [
    "Kind", "Option", "ResourceOptions", "SlurmOptions", "TaskArguments", "TaskOptions", "engine_options", "option", "options_of",
    "read_engine_options",
]  # fmt: skip
