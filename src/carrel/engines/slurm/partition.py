"""A partition of a lab whose jobs go to Slurm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carrel.core.domain.partition import Capabilities, Partition
from carrel.core.domain.slurm import ENGINE
from carrel.core.domain.units import format_duration

#: Seconds for which an allocation of the cluster stays with its user after a short task, where nothing else is said.
HOLD_TIME = 30
#: What Slurm does not say is how much memory its GPUs have. Environments are built and inputs are fetched on its nodes, before
#: the job, by a job of Slurm's without a GPU.
CAPABILITIES = Capabilities(
    title="Slurm",
    chooses_nodes=True,
    gpu_memory=False,
    stage_in=False,
    fetches=True,
)


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

    def shown(self) -> Mapping[str, str | int | None]:
        """What the API shows of it."""
        held = f", kept {format_duration(self.hold_time)} for the next" if self.hold_time else ""
        at_once = f" (short tasks: an allocation at once{held})" if self.immediate else ""
        hold_time = self.hold_time if self.immediate else None
        return {"place": f"Slurm: {self.partition}{at_once}", "slurm": self.partition, "slurm_hold_time": hold_time}


def slurm_partition(name: str, settings: SlurmPartition) -> Partition:
    """Return the partition of the lab."""
    return Partition(name=name, engine=ENGINE, capabilities=CAPABILITIES, settings=settings)


def slurm_of(partition: Partition | None) -> SlurmPartition | None:
    """Return what a partition asks of Slurm; None for one whose jobs do not go there."""
    settings = None if partition is None else partition.settings
    return settings if isinstance(settings, SlurmPartition) else None
