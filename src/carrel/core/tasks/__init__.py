"""What a researcher describes, read strictly: a project directory or a script becomes the description of a task."""

from carrel.core.tasks.backend_config import BackendConfig, read_backend_config
from carrel.core.tasks.describe import TaskDescription, describe, describe_sweep
from carrel.core.tasks.fetch import FetchedProject, fetch_project
from carrel.core.tasks.files import DirectoryFiles, ProjectFiles
