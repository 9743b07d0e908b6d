"""How many shares of its GPU a task asks of Slurm, so that sessions have room for one beside it."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.core.domain.node import Node
from carrel.core.domain.resources import Resources
from carrel.core.domain.slurm import SlurmRequest
from carrel.core.domain.task import Launcher, TaskSpec


def task_shards(resources: Resources, task: TaskSpec, nodes: Sequence[Node], site: SlurmRequest | None = None) -> int:
    """Return how many shards a task of one GPU asks for in a partition of Slurm's with these nodes; 0: it asks for the whole GPU.

    All of a GPU's but one: no second such task fits beside it, and the shard of a session does. Slurm gives a job the shards of
    one GPU only (gres.conf(5)), and does not ask of which type it is, so all GPUs there have to be alike. `site`: what the
    partition says for all its jobs.
    """
    asked = (task.slurm or SlurmRequest(), site or SlurmRequest())
    bound_to_gpus = any(one.exclusive or any("gpu" in option or "gres" in option for option in one.options) for one in asked)
    group = task.tasks_per_node > 1 or task.launcher is not Launcher.NONE
    if resources.total_gpus != 1 or group or bound_to_gpus:
        return 0
    with_gpus = [node for node in nodes if node.devices]
    types = {device.type for node in with_gpus for device in node.devices}
    of_each = {node.shards / len(node.devices) for node in with_gpus}
    if len(of_each) != 1 or (resources.gpu_type and types != {resources.gpu_type}):
        return 0
    (number,) = of_each
    # Of two, one would leave room for a second task.
    return int(number) - 1 if number >= 3 and number.is_integer() else 0
