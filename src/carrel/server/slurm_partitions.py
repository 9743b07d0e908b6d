"""What `carrel.toml` says about partitions of a Slurm cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from carrel.domain.errors import Invalid
from carrel.domain.partition import HOLD_TIME, SlurmPartition
from carrel.engines.slurm.site import site_options
from carrel.server.toml import Setting, convert

#: Keys of a partition that speak of Slurm.
KEYS = ("engine", "slurm_partition", "slurm_qos", "slurm_account", "slurm_options", "slurm_immediate", "slurm_hold_time")


def read_slurm(name: str, table: Mapping[str, Any], where: str) -> SlurmPartition | None:
    """Return what the table of a partition says about Slurm; None for one of the lab's own machine. Raises `Invalid`."""
    engine = table.get("engine", "local")
    if engine not in ("local", "slurm"):
        raise Invalid(f"{where}.engine is {engine!r}.", remedy='It must be "local" or "slurm".')
    if engine == "local":
        for key in KEYS[1:]:
            if key in table:
                raise Invalid(f"{where}: {key} is for partitions of a Slurm cluster.", remedy='Write engine = "slurm" too.')
        return None
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
