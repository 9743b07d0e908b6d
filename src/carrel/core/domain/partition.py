"""Parts of a lab: which nodes go together, whose work runs there, and what the engine that runs it can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from carrel.core.domain.nodelist import in_nodelist
from carrel.core.domain.qos import JobKind

#: The engine of the lab's own machine.
LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do for the jobs of a partition. The defaults are those of the lab's own machine."""

    #: What people call the engine, as in "a Slurm cluster".
    title: str = ""
    #: True when the engine chooses the nodes of its jobs: the lab hands a job over as soon as limits let it in.
    chooses_nodes: bool = False
    #: Kinds of jobs that it takes.
    kinds: frozenset[JobKind] = frozenset(JobKind)
    #: True when it is known how much memory its GPUs have.
    gpu_memory: bool = True
    #: True when tasks may run in an image.
    images: bool = True
    #: True when the lab's own machine builds environments and fetches inputs before a job has its place.
    stage_in: bool = True
    #: True when the engine itself does that, where the lab's machine does not. It is given a launch for that
    #: (`carrel.core.domain.launch.Launch.before_place`), which asks for little.
    fetches: bool = False


class EnginePartition(Protocol):
    """What `carrel.toml` says about one partition to its engine; nothing else reads it."""

    def shown(self) -> Mapping[str, str | int | None]:
        """What the API shows of it, by the names of `PartitionView`'s fields; `place` says in words where jobs go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Some nodes of a lab, and the classes of service that run on them. A lab without partitions is one."""

    name: str
    #: Names of nodes, as `carrel.core.domain.nodelist` reads them.
    nodes: tuple[str, ...] = ("*",)
    #: Classes of service that it takes; empty: all of them.
    qos: tuple[str, ...] = ()
    #: The engine that runs its jobs, by its name in `carrel.toml`.
    engine: str = LOCAL
    capabilities: Capabilities = field(default_factory=Capabilities)
    #: What its engine was told; None for the lab's own machine.
    settings: EnginePartition | None = None

    def takes(self, qos: str) -> bool:
        """True when work of this class of service runs here."""
        return not self.qos or qos in self.qos

    def has(self, node: str) -> bool:
        """True when the lab places jobs of this partition on the node."""
        return not self.cluster and in_nodelist(node, self.nodes)

    @property
    def cluster(self) -> str:
        """What stands for the node of its jobs where the engine chooses the node; "" where the lab does.

        The engine's name and the partition's, with a colon that no node has in its name.
        """
        return f"{self.engine}:{self.name}" if self.capabilities.chooses_nodes else ""


def read_cluster(node: str | None) -> tuple[str, str]:
    """Return the engine and the partition in what stands for a node; two empty texts for a node that the lab has chosen."""
    engine, colon, partition = (node or "").partition(":")
    return (engine, partition) if colon else ("", "")
