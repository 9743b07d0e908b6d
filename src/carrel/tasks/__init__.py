"""What a researcher describes, read strictly: a project directory or a script becomes the description of a task."""

from carrel.tasks.backend_config import BackendConfig, read_backend_config
from carrel.tasks.describe import TaskDescription, describe
from carrel.tasks.fetch import FetchedProject, fetch_project
from carrel.tasks.files import DirectoryFiles, ProjectFiles
from carrel.tasks.overrides import ResourceOverrides

__all__ = [
    "BackendConfig",
    "DirectoryFiles",
    "FetchedProject",
    "ProjectFiles",
    "ResourceOverrides",
    "TaskDescription",
    "describe",
    "fetch_project",
    "read_backend_config",
]
