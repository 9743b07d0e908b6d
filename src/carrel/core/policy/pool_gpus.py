"""Whether workers of a pool borrow their GPUs for each call, or have them from start to end. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from carrel.core.domain.node import Node
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec


def without_gpus(asked: Resources) -> Resources:
    """What a worker that borrows its GPUs holds while it has no call."""
    return replace(asked, gpus=0, gpu_type=None, gpu_memory=0)


def most_that_compute(task: TaskSpec, asked: Resources, nodes: Sequence[Node]) -> int:
    """Return how many workers can compute at once with GPUs that the brokers of these nodes lend; 0: none can borrow there.

    A broker chooses which GPU it lends, so all of them have to be such as the worker asks for.
    """
    if not asked.gpus or asked.nodes > 1 or task.tasks_per_node > 1:
        return 0
    devices = [device for node in nodes for device in node.devices]
    if asked.gpu_type is not None and any(device.type != asked.gpu_type for device in devices):
        return 0
    if any(device.memory < asked.gpu_memory for device in devices):
        return 0
    return sum(len(node.devices) // asked.gpus for node in nodes)


def shared_nodes(asked: Resources, nodes: Sequence[Node], lending: Collection[str]) -> Sequence[Node]:
    """Return the nodes with GPUs where an engine chooses among `nodes`, if all of them lend; else none.

    Slurm gives a job the shards of one GPU only (gres.conf(5)), and a node without a broker (`lending`: those that have one)
    would give one to several jobs at once.
    """
    found = [node for node in nodes if node.devices]
    ready = all(node.shards and node.name.partition(".")[0] in lending for node in found)
    return found if ready and asked.gpus == 1 else ()
