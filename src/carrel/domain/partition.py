"""Parts of a lab: which nodes go together, and whose work runs there."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.domain.nodelist import in_nodelist

#: What stands for the node of a job that was handed to a cluster, before the partition's name: no node is called so.
_CLUSTER = "slurm:"

#: Seconds for which an allocation of the cluster stays with its user after a short task, where nothing else is said.
HOLD_TIME = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPartition:
    """What is asked of Slurm for the jobs of one partition of the lab."""

    partition: str
    #: "" leaves the choice to Slurm; "{qos}" and "{account}" are those that the job has in the lab.
    qos: str = ""
    account: str = ""
    #: Further options as sbatch(1) takes them.
    options: tuple[str, ...] = ()
    #: True when short jobs are given an allocation at once, instead of waiting for the timer of sbatch.
    immediate: bool = False
    #: Seconds for which such an allocation stays with its user for the next short task; 0: it is given back at once.
    hold_time: int = HOLD_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Some nodes of a lab, and the classes of service that run on them. A lab without partitions is one."""

    name: str
    #: Names of nodes, as `carrel.domain.nodelist` reads them.
    nodes: tuple[str, ...] = ("*",)
    #: Classes of service that it takes; empty: all of them.
    qos: tuple[str, ...] = ()
    #: Where its jobs go whose nodes Slurm chooses; None where the lab chooses.
    slurm: SlurmPartition | None = None

    def takes(self, qos: str) -> bool:
        """True when work of this class of service runs here."""
        return not self.qos or qos in self.qos

    def has(self, node: str) -> bool:
        """True when the lab places jobs of this partition on the node."""
        return self.slurm is None and in_nodelist(node, self.nodes)

    @property
    def cluster(self) -> str:
        """What stands for the node of its jobs where Slurm chooses the node; "" where the lab does."""
        return "" if self.slurm is None else f"{_CLUSTER}{self.name}"


def on_cluster(node: str | None) -> bool:
    """True for what stands for a node where Slurm chooses the node."""
    return node is not None and node.startswith(_CLUSTER)


def partition_on_cluster(node: str) -> str:
    """Return the name of the partition in what stands for a node."""
    return node.removeprefix(_CLUSTER)
