"""How many processes a task is, and what starts them: from what its sources say to what is done. Pure."""

from __future__ import annotations

import re

from carrel.core.domain.errors import Invalid
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import Launcher

#: Both names mean the same, so only one of two numbers can be meant.
SAME_GPUS = "Both are the GPUs on each node: keep one of them."
#: Processes on one node, at the most.
MAX_TASKS_PER_NODE = 1024
#: Programs that start the processes of a group themselves, as the first words of a command.
_STARTERS = re.compile(
    r"\s*(?:\S*/)?(torchrun|accelerate\s+launch|mpirun|mpiexec|srun|python[\d.]*\s+-m\s+torch\.distributed\.(?:run|launch))(?=\s|$)"
)


def one_of_gpus(gpus: int | None, gpus_per_node: int | None) -> int | None:
    """Return the GPUs on each node, under whichever of their two names they were asked for."""
    if gpus is not None and gpus_per_node is not None and gpus != gpus_per_node:
        raise Invalid(f"gpus is {gpus} and gpus_per_node is {gpus_per_node}.", remedy=SAME_GPUS)
    return gpus_per_node if gpus is None else gpus


def tasks_on_each_node(asked: int | None, launcher: Launcher, resources: Resources, command: str) -> int:
    """Return the processes on each node: as many as `asked` for, else with torchrun one for each GPU, else one.

    Raises `Invalid` for a number that cannot be, and for a command that starts the processes of the group itself.
    """
    if asked is not None and not 1 <= asked <= MAX_TASKS_PER_NODE:
        raise Invalid(f"tasks_per_node is {asked}.", remedy=f"Ask for 1 to {MAX_TASKS_PER_NODE}.")
    found = _STARTERS.match(command)
    if launcher is not Launcher.NONE and found is not None:
        raise Invalid(
            f'The launcher is {launcher}, but the command begins with "{found[1]}", which starts processes itself.',
            remedy=f"Take it and its options out of the command, as the lab puts {launcher} in front; or take the launcher out.",
        )
    if asked is not None:
        return asked
    return max(1, resources.gpus) if launcher is Launcher.TORCHRUN else 1
