"""What `carrel.toml` says about partitions of a Slurm cluster, and how the engine for them is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.partition import Partition
from carrel.engines.slurm.partition import CAPABILITIES, HOLD_TIME, SlurmPartition, slurm_partition
from carrel.engines.slurm.site import site_options
from carrel.lab.server.toml import Setting, convert

if TYPE_CHECKING:
    from carrel.lab.server.engine import LabContext, LabEngine

#: Keys of a partition that speak of Slurm.
KEYS = ("slurm_partition", "slurm_qos", "slurm_account", "slurm_options", "slurm_immediate", "slurm_hold_time")


def read_slurm(name: str, table: Mapping[str, Any], where: str) -> SlurmPartition:
    """Return what the table of a partition says about Slurm. Raises `Invalid`."""
    if "nodes" in table:
        raise Invalid(f"{where}: Slurm knows which nodes its partition has.", remedy="Leave nodes out.")
    texts = {
        key: convert(Setting(key, "text", None, ""), table.get(f"slurm_{key}", default), f"{where}.slurm_{key}")
        for key, default in (("partition", name), ("qos", ""), ("account", ""))
    }
    options = table.get("slurm_options", [])
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise Invalid(f"{where}.slurm_options is {options!r}.", remedy='It must be a list such as ["--constraint=a100"].')
    immediate = convert(
        Setting("slurm_immediate", "flag", False, ""), table.get("slurm_immediate", False), f"{where}.slurm_immediate"
    )
    hold = HOLD_TIME
    if (given := table.get("slurm_hold_time")) is not None:
        hold = 0 if given == "0s" else convert(Setting("slurm_hold_time", "duration", 0, ""), given, f"{where}.slurm_hold_time")
    part = SlurmPartition(**texts, options=tuple(options), immediate=immediate, hold_time=hold)
    try:
        site_options(part, qos="lab", account="lab")
    except Invalid as error:
        raise Invalid(f"{where}: Slurm: {error.message}", remedy=error.remedy) from error
    return part


class SlurmFactory:
    """What `engine = "slurm"` means."""

    title = CAPABILITIES.title
    keys = KEYS

    def read(self, name: str, table: Mapping[str, Any], where: str) -> Partition:
        """Return the partition. Raises `Invalid`, with the place."""
        return slurm_partition(name, read_slurm(name, table, where))

    def open(self, lab: LabContext) -> LabEngine:
        """Return the engine. Nothing of Slurm's is run before somebody needs it."""
        from carrel.lab.server.slurm import SlurmLabEngine  # who reads rules needs no cluster

        return SlurmLabEngine(lab)


FACTORY = SlurmFactory()
