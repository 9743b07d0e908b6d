"""The lab's way to Slurm: partitions in `carrel.toml`, and the engine that `carrel up` makes for them."""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from carrel.control.launching import LaunchSettings
from carrel.control.rules import RuleBook
from carrel.domain.errors import Invalid, Unavailable
from carrel.domain.launch import Launch
from carrel.domain.partition import SlurmPartition, partition_on_cluster
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.immediate import short_or_session
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.site import ClusterNodes, options_in, site_options
from carrel.server.home import LabHome
from carrel.server.toml import Setting, convert
from carrel.spool import Spool

#: Keys of a partition that speak of Slurm.
KEYS = ("engine", "slurm_partition", "slurm_qos", "slurm_account", "slurm_options", "slurm_immediate")
#: Programs of Slurm's that the lab runs.
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sacct")


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
    part = SlurmPartition(**texts, options=tuple(options), immediate=immediate)
    try:
        site_options(part, qos="lab", account="lab")
    except Invalid as error:
        raise Invalid(f"{where}: Slurm: {error.message}", remedy=error.remedy) from error
    return part


def missing_programs(environ: Mapping[str, str]) -> list[str]:
    """Return which of Slurm's programs are not on this machine."""
    path = environ.get("PATH", os.defpath)
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


class SlurmSide:
    """What the lab has of Slurm. Nothing of Slurm's is run before somebody needs it."""

    def __init__(self, *, home: LabHome, lab_id: str, rules: RuleBook, environ: Mapping[str, str]) -> None:
        self._home = home
        self._lab_id = lab_id
        self._rules = rules
        self._environ = environ
        self._commands = SlurmCommands(environ=environ)
        #: Which nodes a partition has.
        self.nodes = ClusterNodes(self._commands)

    def engine(self) -> SlurmEngine:
        """Make the engine."""
        return SlurmEngine(
            spool=Spool(self._home.spool),
            run_dir=self._home.run / "slurm",
            lab=self._lab_id,
            environ=self._environ,
            commands=self._commands,
            options=self._options,
            immediate=self._immediate,
            user=getpass.getuser(),
        )

    def state(self) -> list[str]:
        """What there is to tell at the start: a line, or none for a lab that has nothing to do with Slurm."""
        partitions = [part.name for part in self._rules.current.partitions.values() if part.slurm is not None]
        if not partitions:
            return []
        named = f"partition{'' if len(partitions) == 1 else 's'} {', '.join(partitions)}"
        missing = missing_programs(self._environ)
        if missing:
            return [f"{', '.join(missing)} not found, so jobs of {named} wait: install Slurm's commands (Debian: slurm-client)"]
        return [f"{named}; `carrel doctor slurm` checks the site"]

    def _immediate(self, launch: Launch) -> bool:
        partition = self._rules.current.partitions.get(partition_on_cluster(launch.node))
        return bool(partition and partition.slurm and partition.slurm.immediate) and short_or_session(launch)

    def _options(self, launch: Launch) -> SlurmOptions:
        name = partition_on_cluster(launch.node)
        partition = self._rules.current.partitions.get(name)
        if partition is None or partition.slurm is None:
            raise Unavailable(
                f'Partition "{name}" is not one of a Slurm cluster any more.',
                remedy="Cancel the job, or ask an administrator to write it into carrel.toml again.",
            )
        return options_in(partition.slurm, launch)


def launch_on_cluster(settings: LaunchSettings, url: str) -> LaunchSettings:
    """Return what jobs are told on other machines, which reach the lab at `url` and none of its sockets."""
    tracking = None if settings.tracking_uri is None else f"{url}/mlflow"
    paths = replace(settings.paths, broker="")
    return replace(settings, paths=paths, gateway=url, tracking_uri=tracking, suspends=False)
