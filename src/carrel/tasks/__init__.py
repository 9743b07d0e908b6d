"""What a researcher describes, read strictly: a project directory or a script becomes the description of a task."""

from carrel.tasks.backend_config import BackendConfig, read_backend_config
from carrel.tasks.describe import TaskDescription, describe
from carrel.tasks.fetch import FetchedProject, fetch_project
from carrel.tasks.files import DirectoryFiles, ProjectFiles

__all__ = [
    "BackendConfig",
    "DirectoryFiles",
    "FetchedProject",
    "ProjectFiles",
    "TaskDescription",
    "describe",
    "fetch_project",
    "read_backend_config",
]
