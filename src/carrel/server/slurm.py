"""The lab's way to Slurm: the engine that `carrel up` makes for partitions of a cluster."""

from __future__ import annotations

import getpass
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from carrel.control.launching import LaunchSettings
from carrel.control.rules import RuleBook
from carrel.control.sessions import NodeNews, no_nodes
from carrel.domain.errors import Unavailable
from carrel.domain.job import Job
from carrel.domain.launch import Launch
from carrel.domain.partition import partition_on_cluster
from carrel.domain.ports import Engine
from carrel.domain.serial import to_plain
from carrel.domain.slurm import read_options
from carrel.domain.task import TaskSpec
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.followed import user_file
from carrel.engines.deputy.owners import OWN, OwnersEngine
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.immediate import short_or_session
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.rest import rest_of
from carrel.engines.slurm.shared import SharedListing
from carrel.engines.slurm.site import ClusterNodes, check_request, options_in
from carrel.policy.task_shards import task_shards
from carrel.server.home import LabHome
from carrel.server.identity import UnixUsers, deputy_command, read_identity
from carrel.server.signing import LabKey
from carrel.server.whose_code import WhoseCode
from carrel.spool import Spool

if TYPE_CHECKING:
    from carrel.server.settings import Settings

__all__ = ["SlurmSide", "check_request", "launch_on_cluster", "missing_programs"]

#: Programs of Slurm's that the lab runs.
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sacct")


def missing_programs(environ: Mapping[str, str]) -> list[str]:
    """Return which of Slurm's programs are not on this machine."""
    path = environ.get("PATH", os.defpath)
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


class SlurmSide:
    """What the lab has of Slurm. Nothing of Slurm's is run before somebody needs it."""

    def __init__(
        self,
        *,
        home: LabHome,
        lab_id: str,
        rules: RuleBook,
        settings: Settings,
        url: str,
        environ: Mapping[str, str],
        news: Callable[[], Sequence[NodeNews]] = no_nodes,
    ) -> None:
        """`news`: what the brokers of the cluster's nodes have said."""
        self._news = news
        self._home = home
        self._settings = settings
        self._identity = read_identity(settings.slurm_identity)
        self._owners: OwnersEngine | None = None
        #: By what name nodes reach this machine.
        self._host = urlsplit(url).hostname or ""
        #: Who users of the lab are there.
        self.users = UnixUsers(self._identity, as_lab=settings.run_users_code_as_lab)
        #: Whose code runs on the lab's own machine.
        self.whose_code = WhoseCode(self._identity, allowed=settings.run_users_code_as_lab)
        self._key = LabKey(home)
        self._lab_id = lab_id
        self._rules = rules
        self._environ = environ
        self._commands = SlurmCommands(environ=environ)
        self._rest = rest_of(settings.slurm_rest, self._commands)
        self._listing = SharedListing(self._commands.listing)
        #: Which nodes a partition has.
        self.nodes = ClusterNodes(self._commands)

    def engine(self) -> OwnersEngine:
        """Make the engine."""
        self._owners = OwnersEngine(engine_of=self._engine_of, user_of=self.users.of, spool=Spool(self._home.spool))
        return self._owners

    def addresses(self, own: Callable[[Job], bytes | None]) -> Callable[[Job], bytes | None]:
        """Return what reads where a session is: the lab itself (`own`), or the deputy of whoever it belongs to."""

        def read(job: Job) -> bytes | None:
            theirs = self._owners.read_address(job.id, job.attempt) if self._owners is not None else None
            return own(job) if theirs is None else theirs

        return read

    def deputy_of(self, job: Job, cluster: Callable[[], Engine]) -> DeputyEngine | None:
        """Return whose hands the files of a job's last attempt are in; None when they are the lab's own.

        `cluster` makes the engine for Slurm, if it is not there.
        """
        if not user_file(Spool(self._home.spool), job.id, job.attempt).exists():
            return None
        engine = cluster()
        return engine.deputy_of(job.id, job.attempt) if isinstance(engine, OwnersEngine) else None

    def _engine_of(self, user: str) -> Engine:
        if user != OWN:
            return DeputyEngine(
                user=user,
                command=deputy_command(self._settings.slurm_deputy, user),
                lab=self._lab_id,
                spool=Spool(self._home.spool),
                snapshots=self._home.snapshots,
                blobs=self._home.blobs,
                files=self._home.files,
                log=self._home.logs / f"deputy.{user}.log",
                options=self._options,
                immediate=self._immediate,
                hold=self._hold,
                host=self._host,
                signer=self._key,
                listing=self._listing,
                environ=self._environ,
            )
        return SlurmEngine(
            spool=Spool(self._home.spool),
            run_dir=self._home.run / "slurm",
            lab=self._lab_id,
            environ=self._environ,
            commands=self._commands,
            transport=self._rest,
            listing=self._listing,
            options=self._options,
            immediate=self._immediate,
            hold=self._hold,
            host=self._host,
            order=lambda launch: self._key.order(OWN, to_plain(launch)),
            key=self._key.public,
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
        return [f"{named}; {self._identity.describe()}; `carrel doctor slurm` checks the site"]

    def shards(self, job: Job, task: TaskSpec) -> int:
        """Return how many shares of its GPU a task that gives it to cells asks for; 0: all of it.

        That is where each node that it may come to has a broker now which lets tasks give way. A task with shares and without a
        broker would have its GPU together with cells that nobody holds back.
        """
        partition = self._rules.current.partitions.get(partition_on_cluster(job.node or ""))
        if partition is None or partition.slurm is None or not self._settings.slurm_broker or self._settings.slurm_lend < 1:
            return 0
        nodes = self.nodes.known(partition)
        lending = {one.node.split(".")[0] for one in self._news() if one.current and one.status.get("tasks_lend")}
        if not all(node.name.split(".")[0] in lending for node in nodes if node.devices):
            return 0
        return task_shards(job.resources, task, nodes, read_options(partition.slurm.options))

    def _immediate(self, launch: Launch) -> bool:
        partition = self._rules.current.partitions.get(partition_on_cluster(launch.node))
        return bool(partition and partition.slurm and partition.slurm.immediate) and short_or_session(launch)

    def _hold(self, launch: Launch) -> float:
        partition = self._rules.current.partitions.get(partition_on_cluster(launch.node))
        return partition.slurm.hold_time if partition and partition.slurm and partition.slurm.immediate else 0

    def _options(self, launch: Launch) -> SlurmOptions:
        name = partition_on_cluster(launch.node)
        partition = self._rules.current.partitions.get(name)
        if partition is None or partition.slurm is None:
            raise Unavailable(
                f'Partition "{name}" is not one of a Slurm cluster any more.',
                remedy="Cancel the job, or ask an administrator to write it into carrel.toml again.",
            )
        return options_in(partition.slurm, launch)


def launch_on_cluster(
    settings: LaunchSettings, url: str, *, session_ports: str = "", broker: str = "", residency: str = ""
) -> LaunchSettings:
    """Return what jobs are told on other machines, which reach the lab at `url` and none of its sockets.

    `broker` is where a node has a broker of its own, if it has one; `residency` the library that what it lends to loads there.
    """
    tracking = None if settings.tracking_uri is None else f"{url}/mlflow"
    # Inputs are kept on the lab's own machine alone.
    paths = replace(settings.paths, broker=broker, residency=residency if broker else "", inputs="")
    return replace(
        settings,
        paths=paths,
        # A cluster has quotas of its own.
        limits=replace(settings.limits, disk=0),
        gateway=url,
        tracking_uri=tracking,
        suspends=False,
        walls=lambda _owner: None,
        remote=True,
        session_ports=session_ports,
    )
