"""What a task wants beside resources, and this lab may not have: refused at submit instead of after an hour in line."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from carrel.core.domain.errors import Impossible
from carrel.core.domain.launch import LaunchRucio
from carrel.core.domain.partition import Partition
from carrel.core.domain.task import EnvironmentKind, Launcher, TaskSpec
from carrel.node.containment.trial import try_walls
from carrel.node.environments import EnvironmentFailed, EnvironmentStore
from carrel.node.staging.failed import InputFailed
from carrel.node.staging.fetching import check_uri


@dataclass(frozen=True, slots=True)
class Preparable:
    """Asks those who will prepare the task. Thread-safe; what is found here is asked for once."""

    environments: EnvironmentStore
    #: The lab's, if it has one.
    rucio: LaunchRucio | None = None

    def check(self, task: TaskSpec, partition: Partition | None, nodes: int = 1) -> None:
        """Return when inputs can be staged and the environment can be made; raise `Impossible` with the remedy if not.

        What the nodes of a cluster have is not known here: of an environment there nothing is asked. Carrel is the same
        installation there, so inputs are.
        """
        try:
            for uri in (*(item.uri for item in task.inputs), *task.path_parameters.values()):
                check_uri(uri, self.rucio)
            if task.environment.kind is EnvironmentKind.IMAGE:
                _check_image(task, partition, nodes)
            if task.environment.wanted and (partition is None or partition.capabilities.stage_in):
                self.environments.check(task.environment)
        except (InputFailed, EnvironmentFailed) as error:
            raise Impossible(error.message, remedy=error.remedy, details=error.details) from error


def _check_image(task: TaskSpec, partition: Partition | None, nodes: int) -> None:
    what = "task" if task.session is None else "session"
    if partition is not None and not partition.capabilities.images:
        raise Impossible(
            f"The {what} has an image, and {partition.capabilities.title or 'the engine'} of {partition.name} runs none.",
            remedy="Choose another partition, or describe the packages (python_env.yaml, conda.yaml).",
        )
    if nodes > 1 and task.launcher is Launcher.MPI:
        raise Impossible(
            f"The task has an image, and MPI of an image cannot start processes on {nodes} nodes: it would have to reach Slurm.",
            remedy="Use launcher torchrun or none, one node (-N 1), or describe the packages (conda.yaml has an MPI).",
        )
    if partition is not None and not partition.capabilities.stage_in:
        return  # what its nodes have is found out there
    why_not, remedy = _why_no_walls()
    if why_not:
        raise Impossible(f"The {what} has an image, which does not work on this machine: {why_not}", remedy=remedy)


@cache
def _why_no_walls() -> tuple[str, str]:
    """An image takes the place of the machine's files in namespaces. That is tried once."""
    trial = try_walls()
    return trial.why_not, trial.remedy
