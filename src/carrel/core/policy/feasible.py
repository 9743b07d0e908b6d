"""Refuse at submit what could never start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.units import format_duration, format_size
from carrel.core.policy.node_capacity import idle_room

#: Which nodes an engine that chooses them has for a partition, as far as that is known.
ClusterNodes = Callable[[Partition], Sequence[Node]]


def nothing_known(_partition: Partition) -> Sequence[Node]:
    """The engine has not said which nodes there are."""
    return ()


def feasible(
    resources: Resources,
    kind: JobKind,
    qos: QoS,
    nodes: Sequence[Node],
    *,
    others: Iterable[QoS] = (),
    partition: Partition | None = None,
    partitions: Iterable[Partition] = (),
    cluster: ClusterNodes = nothing_known,
) -> None:
    """Return when the job can start here some day; raise `Impossible`, with what would fit, when it never can.

    Drained nodes count, and those that are kept for others: they come back. Who else waits does not matter. With a `partition`
    its nodes alone count. `others` are the classes of service that a remedy may name, `partitions` the parts of the lab.
    `cluster` says which nodes a partition has whose engine chooses them; where it knows none, the engine is left to refuse what
    is too large.
    """
    if resources.cpus < 1:
        raise Invalid(f"cpus is {resources.cpus}.", remedy="A job needs at least 1.")
    _check_qos(resources, kind, qos, others)
    if not nodes:
        raise Impossible("The lab has no node.", remedy="Ask an administrator.")
    if partition is None:
        _check_all(resources, nodes)
    else:
        _check_partition(resources, kind, qos, _NodesOf(nodes, cluster), partition, partitions)


def _check_all(resources: Resources, nodes: Sequence[Node], part: str = "") -> None:
    """`part` names the partition that these nodes are."""
    _check_gpus(resources, nodes, part)
    _check_node(resources, nodes, part)
    _check_nodes(resources, nodes, part)


class _NodesOf(NamedTuple):
    nodes: Sequence[Node]
    cluster: ClusterNodes

    def inside(self, partition: Partition) -> Sequence[Node]:
        if partition.cluster:
            return self.cluster(partition)
        return [node for node in self.nodes if partition.has(node.name)]


def _check_partition(
    resources: Resources, kind: JobKind, qos: QoS, nodes: _NodesOf, partition: Partition, partitions: Iterable[Partition]
) -> None:
    refusal = _refusal_of(partition, resources, kind, qos, nodes)
    if refusal is None:
        return
    fitting = [f'"{other.name}"' for other in partitions if _refusal_of(other, resources, kind, qos, nodes) is None]
    another = f" Or choose partition {' or '.join(fitting)}, which can run it." if fitting else ""
    raise Impossible(
        refusal.message, remedy=f"{refusal.remedy}{another}", details={**refusal.details, "partition": partition.name}
    )


def _refusal_of(partition: Partition, resources: Resources, kind: JobKind, qos: QoS, nodes: _NodesOf) -> Impossible | None:
    """Return why such a job never starts in a partition, or None when it does."""
    if not partition.takes(qos.name):
        return Impossible(
            f'Partition "{partition.name}" does not take QoS "{qos.name}".',
            remedy=f"It takes: {', '.join(partition.qos)}.",
            details={"qos": qos.name},
        )
    inside, refusal = nodes.inside(partition), _refusal_of_engine(partition, resources, kind)
    if refusal is not None or (partition.cluster and not inside):
        return refusal
    if not inside:
        return Impossible(f'Partition "{partition.name}" has no node.', remedy="Ask an administrator.")
    try:
        _check_all(resources, inside, f'partition "{partition.name}"')
    except Impossible as refusal:
        return refusal
    return None


def _refusal_of_engine(partition: Partition, resources: Resources, kind: JobKind) -> Impossible | None:
    """Return what cannot be had of the partition's engine, whatever its nodes are."""
    can = partition.capabilities
    if kind not in can.kinds:
        return Impossible(
            f'Partition "{partition.name}" is one of a {can.title} cluster, which takes no {kind}.',
            remedy="Name a partition of the lab's own machine.",
        )
    if resources.gpu_memory and not can.gpu_memory:
        return Impossible(
            f'The job asks for GPUs with {format_size(resources.gpu_memory)}, but {can.title} (partition "{partition.name}") '
            "does not say how much its GPUs have.",
            remedy="Name a type of GPU instead.",
        )
    return None


def _check_qos(resources: Resources, kind: JobKind, qos: QoS, others: Iterable[QoS]) -> None:
    refusal = _refusal(resources, kind, qos)
    if refusal is None:
        return
    message, less, details = refusal
    fitting = [f'"{other.name}"' for other in others if _refusal(_as_in(other, resources, qos), kind, other) is None]
    another = f"choose QoS {' or '.join(fitting)}, which allows it" if fitting else "choose another QoS"
    remedy = f"{less}, or {another}." if less else f"{another[0].upper()}{another[1:]}."
    raise Impossible(message, remedy=remedy, details=details)


def _as_in(other: QoS, resources: Resources, qos: QoS) -> Resources:
    """A walltime that is just the default of its class would be another one in the `other`."""
    return replace(resources, time=other.default_time) if resources.time == qos.default_time else resources


def _refusal(resources: Resources, kind: JobKind, qos: QoS) -> tuple[str, str, dict[str, Any]] | None:
    """Return why `qos` never lets such a job in, what would be little enough, and the numbers; None when it does."""
    if kind not in qos.kinds:
        takes = " and ".join(sorted(qos.kinds)) or "nothing"
        return f'QoS "{qos.name}" does not take a {kind}; it takes: {takes}.', "", {}
    if qos.max_time is not None and resources.time > qos.max_time:
        most, asked = format_duration(qos.max_time), format_duration(resources.time)
        if asked == most:
            most, asked = f"{qos.max_time} s", f"{resources.time} s"
        return (
            f'The job asks for {asked}, but QoS "{qos.name}" allows {most}.',
            f"Ask for {most} or less",
            {"time": resources.time, "max_time": qos.max_time},
        )
    if 0 in (qos.max_jobs_per_user, qos.max_jobs_per_account):
        return f'QoS "{qos.name}" allows no jobs.', "", {}
    for most_gpus, per, rule in (
        (qos.max_gpus_per_user, "per user", "max_gpus_per_user"),
        (qos.max_gpus_per_account, "per account", "max_gpus_per_account"),
        (qos.max_gpus, "in all", "max_gpus"),
    ):
        if most_gpus is not None and resources.total_gpus > most_gpus:
            return (
                f'The job asks for {_count(resources.total_gpus)}, but QoS "{qos.name}" allows {most_gpus} {per}.',
                f"Ask for {most_gpus} or fewer" if most_gpus else "Ask for none",
                {"gpus": resources.total_gpus, rule: most_gpus},
            )
    return None


def _check_gpus(resources: Resources, nodes: Sequence[Node], part: str) -> None:
    """The type exists, and some node has enough of it."""
    if resources.gpus == 0:
        return
    per_node = [Counter(device.type for device in node.devices) for node in nodes]
    most = Counter[str]()
    for types in per_node:
        most |= types
    if not most:
        raise Impossible(
            f"The job asks for {_count(resources.gpus)}, but {part or 'this lab'} has none.",
            remedy="Ask for 0 GPUs. Without the hardware, a lab offers simulated ones: carrel up --simulate-gpus 2",
        )
    wanted = resources.gpu_type
    if wanted is not None and wanted not in most:
        near = get_close_matches(wanted.lower(), most, n=1)
        meant = f'Did you mean "{near[0]}"? ' if near else ""
        raise Impossible(
            f'There is no GPU of type "{wanted}" {f"in {part}" if part else "here"}.',
            remedy=f"{meant}There are: {_types(most)}. Without a type any will do.",
            details={"gpu_type": wanted, "types": sorted(most)},
        )
    _check_gpu_memory(resources, nodes, part)
    largest = max(_gpus_of(node, resources) for node in nodes)
    if resources.gpus > largest:
        raise Impossible(
            f"The job asks for {resources.describe_gpus()} on one node, but the largest node{_of(part)} has {largest}.",
            remedy=f"Ask for {largest} or fewer. Most on one node: {_types(most)}.",
            details={"gpus": resources.gpus, "largest": largest},
        )


def _check_gpu_memory(resources: Resources, nodes: Sequence[Node], part: str) -> None:
    """Some GPU that it may have has so much memory."""
    found = [
        (memory, name)
        for node in nodes
        for name, memory in idle_room(node).gpu_memory.items()
        if resources.gpu_type in (None, name)
    ]
    memory, name = max(found)
    if resources.gpu_memory > memory:
        raise Impossible(
            f"The job asks for GPUs with {format_size(resources.gpu_memory)}, "
            f"but the largest {f'in {part}' if part else 'here'} ({name}) has {_floor_size(memory)}.",
            remedy=f'Ask for "{_floor_size(memory)}" or less.',
            details={"gpu_memory": resources.gpu_memory, "largest": memory},
        )


def _check_node(resources: Resources, nodes: Sequence[Node], part: str) -> None:
    """One of the nodes with enough GPUs has enough cpus and memory too."""
    suited = [node for node in nodes if _gpus_of(node, resources) >= resources.gpus]
    where = f"node{_of(part)} with {resources.describe_gpus()}" if resources.gpus else f"node{_of(part)}"
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


def _check_nodes(resources: Resources, nodes: Sequence[Node], part: str) -> None:
    """There are as many such nodes as the job asks for."""
    able = sum(
        _gpus_of(node, resources) >= resources.gpus and node.cpus >= resources.cpus and node.memory >= resources.memory
        for node in nodes
    )
    if able < resources.nodes:
        raise Impossible(
            f"The job asks for {resources.nodes} nodes, "
            f"but {part or 'the lab'} has {able} that {'is' if able == 1 else 'are'} large enough.",
            remedy=f"Ask for {able} or fewer, or for less on each."
            if able > 1
            else "Ask for 1, with as many processes there (tasks_per_node).",
            details={"nodes": resources.nodes, "largest": able},
        )


def _of(part: str) -> str:
    return f" of {part}" if part else ""


def _gpus_of(node: Node, resources: Resources) -> int:
    return idle_room(node).all_of(resources)


def _floor_size(size: int) -> str:
    """Like `format_size` but never more than there is, so that what the remedy says does fit."""
    mib, gib = 1024**2, 1024**3
    return f"{size * 10 // gib / 10:g}G" if size >= gib else f"{size // mib}M"


def _types(most: Counter[str]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(most.items()))


def _count(gpus: int) -> str:
    return f"{gpus} GPU{'' if gpus == 1 else 's'}"
