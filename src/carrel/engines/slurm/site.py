"""What a lab's rules say about a partition of Slurm's, and what Slurm says about its nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.ports import Clock
from carrel.core.domain.slurm import SlurmRequest, read_options
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import node_of, options_for
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.partition import SlurmPartition, slurm_of

#: Seconds after which the nodes are asked for again, and for which a submission waits for the first answer.
_FRESH, _FIRST = 60.0, 5.0


def site_options(part: SlurmPartition, *, qos: str = "", account: str = "") -> SlurmOptions:
    """Return what is asked of Slurm for every job of the partition; `qos` and `account` are the job's in the lab.

    Raises `Invalid` for what Slurm would refuse or read as something else.
    """
    return _options(part, read_options(part.options), qos=qos, account=account)


def options_in(part: SlurmPartition, launch: Launch) -> SlurmOptions:
    """Return what is asked of Slurm for one job of the partition."""
    asked = read_options(part.options)
    wishes = launch.task.slurm or SlurmRequest()
    if launch.build and wishes.constraint:  # an environment is for nodes of the kind on which the task will run
        asked = SlurmRequest(constraint=wishes.constraint).within(asked)
    elif not launch.before_place:  # what only fetches needs nothing of what the task wants
        asked = wishes.within(asked)
    wanted = options_for(launch)
    return replace(
        _options(part, asked, qos=launch.qos, account=launch.account),
        time=wanted.time,
        memory=wanted.memory,
        cpus=wanted.cpus,
        gpus=wanted.gpus,
        gpu_type=wanted.gpu_type,
        nodes=wanted.nodes,
        shards=wanted.shards,
    )


def check_request(part: SlurmPartition, request: SlurmRequest) -> None:
    """Raise `Invalid`, by name, for what a task of this partition cannot ask of Slurm."""
    _options(part, request.within(read_options(part.options)), qos="lab", account="lab")


def _options(part: SlurmPartition, asked: SlurmRequest, *, qos: str, account: str) -> SlurmOptions:
    named = {"{qos}": qos, "{account}": account}
    return SlurmOptions(
        partition=part.partition,
        qos=named.get(part.qos, part.qos),
        account=named.get(part.account, part.account),
        constraint=asked.constraint,
        exclusive=asked.exclusive,
        reservation=asked.reservation,
        mail=asked.mail,
        mail_events=asked.mail_events,
        modules=asked.modules,
        passed=asked.options,
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
        self._refresh()
        self._answered.wait(_FIRST)
        return self._of(partition)

    def known(self, partition: Partition) -> Sequence[Node]:
        """Return the same without waiting for anything."""
        self._refresh()
        return self._of(partition)

    def _refresh(self) -> None:
        with self._lock:
            now = self._monotonic()
            if self._asked_at is None or now - self._asked_at > _FRESH:
                self._asked_at = now
                threading.Thread(target=self._ask, name="carrel-slurm-nodes", daemon=True).start()

    def _of(self, partition: Partition) -> Sequence[Node]:
        asked = slurm_of(partition)
        wanted = frozenset(asked.partition.split(",") if asked is not None else ())
        return tuple(node for partitions, node in self._nodes if partitions & wanted)

    def _ask(self) -> None:
        try:
            records = self._commands.nodes()
            self._nodes = tuple((frozenset(record.get("Partitions", "").split(",")), node_of(record)) for record in records)
        except CarrelError:
            pass  # what was known is better than nothing
        finally:
            self._answered.set()
