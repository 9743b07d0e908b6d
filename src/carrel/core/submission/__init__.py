"""What a task may ask for: one declaration, from which the command line, the client, the API and the task's files follow."""

from carrel.core.submission.engine_options import engine_options, read_engine_options
from carrel.core.submission.option import Kind, Option, option, options_of
from carrel.core.submission.resource_options import ResourceOptions
from carrel.core.submission.slurm_options import SlurmOptions
from carrel.core.submission.sweep_options import SweepOptions
from carrel.core.submission.task_options import TaskArguments, TaskOptions
