"""What a task wants beside resources, and this lab may not have: refused at submit instead of after an hour in line."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.domain.errors import Impossible
from carrel.domain.partition import Partition
from carrel.domain.task import EnvironmentKind, TaskSpec
from carrel.environments import EnvironmentFailed, EnvironmentStore
from carrel.staging.failed import InputFailed
from carrel.staging.fetching import check_uri


@dataclass(frozen=True, slots=True)
class Preparable:
    """Asks those who will prepare the task. Thread-safe; what is found here is asked for once."""

    environments: EnvironmentStore

    def check(self, task: TaskSpec, partition: Partition | None) -> None:
        """Return when inputs can be staged and the environment can be made; raise `Impossible` with the remedy if not.

        What the nodes of a cluster have is not known here: of an environment there nothing is asked. Carrel is the same
        installation there, so inputs are.
        """
        try:
            for uri in (*(item.uri for item in task.inputs), *task.path_parameters.values()):
                check_uri(uri)
            wanted = task.environment.kind is not EnvironmentKind.NONE or task.environment.python is not None
            if wanted and (partition is None or partition.slurm is None):
                self.environments.check(task.environment)
        except (InputFailed, EnvironmentFailed) as error:
            raise Impossible(error.message, remedy=error.remedy, details=error.details) from error
