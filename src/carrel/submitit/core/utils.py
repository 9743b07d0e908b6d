"""submitit's `core.utils`."""

from carrel.client.submitit.errors import FailedJobError, FailedSubmissionError, UncompletedJobError
from carrel.client.submitit.helpers import CommandFunction, environment_variables
from carrel.client.submitit.paths import JobPaths
from carrel.client.submitit.snapshot import archive_dev_folders
from carrel.client.submitit.submission import DelayedSubmission, read_pickle, write_pickle

#: The same by submitit's names.
cloudpickle_dump, pickle_load = write_pickle, read_pickle

__all__ = [
    "CommandFunction",
    "DelayedSubmission",
    "FailedJobError",
    "FailedSubmissionError",
    "JobPaths",
    "UncompletedJobError",
    "archive_dev_folders",
    "cloudpickle_dump",
    "environment_variables",
    "pickle_load",
]
