"""Refuse at submit what could never start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches

from carrel.domain.errors import Impossible
from carrel.domain.node import Node
from carrel.domain.qos import JobKind, QoS
from carrel.domain.resources import Resources
from carrel.domain.units import format_duration, format_size


def feasible(resources: Resources, kind: JobKind, qos: QoS, nodes: Sequence[Node]) -> None:
    """Return when the job can start here some day; raise `Impossible`, with what would fit, when it never can.

    Drained nodes count: they come back. Who else waits does not matter.
    """
    _check_qos(resources, kind, qos)
    if not nodes:
        raise Impossible("The lab has no node.", remedy="Ask an administrator.")
    _check_gpus(resources, nodes)
    _check_node(resources, nodes)


def _check_qos(resources: Resources, kind: JobKind, qos: QoS) -> None:
    if kind not in qos.kinds:
        takes = " and ".join(sorted(qos.kinds)) or "nothing"
        raise Impossible(f'QoS "{qos.name}" does not take a {kind}.', remedy=f"It takes: {takes}. Choose another QoS.")
    if qos.max_time is not None and resources.time > qos.max_time:
        raise Impossible(
            f'The job asks for {format_duration(resources.time)}, but QoS "{qos.name}" allows {format_duration(qos.max_time)}.',
            remedy=f"Ask for {format_duration(qos.max_time)} or less, or choose another QoS.",
            details={"time": resources.time, "max_time": qos.max_time},
        )
    if qos.max_jobs_per_user is not None and qos.max_jobs_per_user < 1:
        raise Impossible(f'QoS "{qos.name}" allows no jobs.', remedy="Choose another QoS.")
    if qos.max_gpus_per_user is not None and resources.gpus > qos.max_gpus_per_user:
        less = f"Ask for {qos.max_gpus_per_user} or fewer" if qos.max_gpus_per_user else "Ask for none"
        raise Impossible(
            f'The job asks for {_count(resources.gpus)}, but QoS "{qos.name}" allows {qos.max_gpus_per_user} per user.',
            remedy=f"{less}, or choose another QoS.",
            details={"gpus": resources.gpus, "max_gpus_per_user": qos.max_gpus_per_user},
        )


def _check_gpus(resources: Resources, nodes: Sequence[Node]) -> None:
    """The type exists, and some node has enough of it."""
    if resources.gpus == 0:
        return
    per_node = [Counter(device.type for device in node.devices) for node in nodes]
    most = Counter[str]()
    for types in per_node:
        most |= types
    if not most:
        raise Impossible(f"The job asks for {_count(resources.gpus)}, but this lab has none.", remedy="Ask for gpus=0.")
    wanted = resources.gpu_type
    if wanted is not None and wanted not in most:
        near = get_close_matches(wanted.lower(), most, n=1)
        meant = f'Did you mean "{near[0]}"? ' if near else ""
        raise Impossible(
            f'There is no GPU of type "{wanted}" here.',
            remedy=f"{meant}There are: {_types(most)}. Without a type any will do.",
            details={"gpu_type": wanted, "types": sorted(most)},
        )
    largest = max(types.total() if wanted is None else types[wanted] for types in per_node)
    if resources.gpus > largest:
        kind = f" ({wanted})" if wanted else ""
        raise Impossible(
            f"The job asks for {_count(resources.gpus)}{kind} on one node, but the largest node has {largest}.",
            remedy=f"Ask for {largest} or fewer. Most on one node: {_types(most)}.",
            details={"gpus": resources.gpus, "largest": largest},
        )


def _check_node(resources: Resources, nodes: Sequence[Node]) -> None:
    """One of the nodes with enough GPUs has enough cpus and memory too."""
    suited = [node for node in nodes if _gpus_of(node, resources.gpu_type) >= resources.gpus]
    kind = f" ({resources.gpu_type})" if resources.gpu_type else ""
    where = f"node with {_count(resources.gpus)}{kind}" if resources.gpus else "node"
    cpus = max(node.cpus for node in suited)
    if resources.cpus > cpus:
        raise Impossible(
            f"The job asks for {resources.cpus} CPUs, but the largest {where} has {cpus}.",
            remedy=f"Ask for {cpus} or fewer.",
            details={"cpus": resources.cpus, "largest": cpus},
        )
    memory = max(node.memory for node in suited)
    if resources.memory > memory:
        raise Impossible(
            f"The job asks for {format_size(resources.memory)} of memory, but the largest {where} has {_floor_size(memory)}.",
            remedy=f'Ask for "{_floor_size(memory)}" or less.',
            details={"memory": resources.memory, "largest": memory},
        )
    beside = max(node.memory for node in suited if node.cpus >= resources.cpus)
    if resources.memory > beside:
        raise Impossible(
            f"No {where} has {resources.cpus} CPUs and {format_size(resources.memory)} of memory together.",
            remedy=f'With {resources.cpus} CPUs, ask for "{_floor_size(beside)}" or less of memory.',
            details={"cpus": resources.cpus, "memory": resources.memory, "largest": beside},
        )


def _gpus_of(node: Node, gpu_type: str | None) -> int:
    return sum(gpu_type in (None, device.type) for device in node.devices)


def _floor_size(size: int) -> str:
    """Like `format_size` but never more than there is, so that what the remedy says does fit."""
    mib = 1024**2
    return f"{size // mib // 1024}G" if size % (1024 * mib) == 0 else f"{size // mib}M"


def _types(most: Counter[str]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(most.items()))


def _count(gpus: int) -> str:
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"
