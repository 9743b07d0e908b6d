"""What a lab's rules say about a partition of Slurm's, and what Slurm says about its nodes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from carrel.domain.errors import CarrelError
from carrel.domain.launch import Launch
from carrel.domain.node import Node
from carrel.domain.partition import Partition, SlurmPartition
from carrel.domain.ports import Clock
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import node_of, options_for
from carrel.engines.slurm.options import SlurmOptions

#: Options with a field of their own that a partition may set for all its jobs.
_FIELDS = re.compile(r"--(constraint|reservation|exclusive)(?:=(.*))?", re.DOTALL)
#: Seconds after which the nodes are asked for again, and for which a submission waits for the first answer.
_FRESH, _FIRST = 60.0, 5.0


def site_options(part: SlurmPartition, *, qos: str = "", account: str = "") -> SlurmOptions:
    """Return what is asked of Slurm for every job of the partition; `qos` and `account` are the job's in the lab.

    Raises `Invalid` for what Slurm would refuse or read as something else.
    """
    fields: dict[str, str] = {}
    passed: list[str] = []
    for option in part.options:
        match = _FIELDS.fullmatch(option)
        if match is None:
            passed.append(option)
        else:
            fields[match[1]] = match[2] or ("exclusive" if match[1] == "exclusive" else "")
    named = {"{qos}": qos, "{account}": account}
    return SlurmOptions(
        partition=part.partition,
        qos=named.get(part.qos, part.qos),
        account=named.get(part.account, part.account),
        constraint=fields.get("constraint", ""),
        reservation=fields.get("reservation", ""),
        exclusive=fields.get("exclusive", ""),
        passed=tuple(passed),
    )


def options_in(part: SlurmPartition, launch: Launch) -> SlurmOptions:
    """Return what is asked of Slurm for one job of the partition."""
    site, wanted = site_options(part, qos=launch.qos, account=launch.account), options_for(launch)
    return replace(
        site,
        time=wanted.time,
        memory=wanted.memory,
        cpus=wanted.cpus,
        gpus=wanted.gpus,
        gpu_type=wanted.gpu_type,
        nodes=wanted.nodes,
    )


class ClusterNodes:
    """Which nodes the partitions of a cluster have, as Slurm said a minute ago at most. Thread-safe."""

    def __init__(self, commands: SlurmCommands, *, monotonic: Clock = time.monotonic) -> None:
        self._commands = commands
        self._monotonic = monotonic
        self._nodes: Sequence[tuple[frozenset[str], Node]] = ()
        self._asked_at: float | None = None
        self._answered = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, partition: Partition) -> Sequence[Node]:
        """Return the nodes of a partition; none while Slurm has not said.

        Nobody waits for a controller that hangs, but for a moment when it is asked for the first time.
        """
        if partition.slurm is None:
            return ()
        with self._lock:
            now = self._monotonic()
            if self._asked_at is None or now - self._asked_at > _FRESH:
                self._asked_at = now
                threading.Thread(target=self._ask, name="carrel-slurm-nodes", daemon=True).start()
        self._answered.wait(_FIRST)
        wanted = frozenset(partition.slurm.partition.split(","))
        return tuple(node for partitions, node in self._nodes if partitions & wanted)

    def _ask(self) -> None:
        try:
            records = self._commands.nodes()
            self._nodes = tuple((frozenset(record.get("Partitions", "").split(",")), node_of(record)) for record in records)
        except CarrelError:
            pass  # what was known is better than nothing
        finally:
            self._answered.set()
