"""The lab's way to Slurm: the engine for partitions of a cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from carrel.core.control.launching import LaunchSettings
from carrel.core.domain.errors import Unavailable
from carrel.core.domain.job import Job
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition, read_cluster
from carrel.core.domain.ports import Engine
from carrel.core.domain.serial import to_plain
from carrel.core.domain.slurm import SlurmRequest, read_options
from carrel.core.domain.task import EngineRequest, TaskSpec
from carrel.core.spool import Spool
from carrel.core.submission.own_name import own_name
from carrel.engines.deputy.engine import DeputyEngine
from carrel.engines.deputy.followed import user_file
from carrel.engines.router import Router
from carrel.engines.slurm.commands import SlurmCommands
from carrel.engines.slurm.engine import SlurmEngine
from carrel.engines.slurm.immediate import short_or_session
from carrel.engines.slurm.options import SlurmOptions
from carrel.engines.slurm.partition import SlurmPartition, slurm_of
from carrel.engines.slurm.shared import SharedListing
from carrel.engines.slurm.site import ClusterNodes, check_request, options_in
from carrel.engines.slurm.task_shards import task_shards
from carrel.lab.server.engine import LabContext, LabEngine
from carrel.lab.server.identity import UnixUsers, deputy_command, read_identity
from carrel.lab.server.image_paths import shown_in_images
from carrel.lab.server.preload import library_for
from carrel.lab.server.signing import LabKey

#: Programs of Slurm's that the lab runs.
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sacct")
#: Stands for the Unix user that the lab itself runs as, who needs no deputy.
OWN = ""


def missing_programs(environ: Mapping[str, str]) -> list[str]:
    """Return which of Slurm's programs are not on this machine."""
    path = environ.get("PATH", os.defpath)
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


class SlurmLabEngine(LabEngine):
    """What the lab has of Slurm: an engine for each Unix user as whom jobs run. Nothing of Slurm's is run before it is needed."""

    def __init__(self, lab: LabContext) -> None:
        super().__init__(lab)
        self._settings = lab.settings
        self._spool = Spool(lab.home.spool)
        self._identity = read_identity(self._settings["slurm_identity"])
        #: By what name nodes reach this machine.
        self._host = urlsplit(lab.url).hostname or ""
        self._users = UnixUsers(self._identity, as_lab=self._settings["run_users_code_as_lab"])
        self._key = LabKey(lab.home)
        self._commands = SlurmCommands(environ=lab.environ)
        self._listing = SharedListing(self._commands.listing)
        self._nodes = ClusterNodes(self._commands)
        self._owners = Router(route=self._user_of, make=self._engine_of)

    def make(self) -> Engine:
        """Return the engine, which makes that of a user when there is something for it to do."""
        return self._owners

    def nodes(self, partition: Partition) -> Sequence[Node]:
        """Those that Slurm has for the partition, as it said a minute ago at most."""
        return self._nodes(partition)

    def user(self, subject: str) -> str:
        """Who somebody is on the cluster."""
        return self._users.of(subject)

    def passed(self, environ: Mapping[str, str]) -> Mapping[str, str]:  # noqa: ARG002 - Slurm's commands have a list of their own
        """What sbatch is given."""
        return self._commands.environ

    def check(self, partition: Partition, asked: EngineRequest) -> None:
        """Raise `Invalid`, by name, for what a task of this partition cannot ask of Slurm."""
        settings = slurm_of(partition)
        if settings is not None and isinstance(asked, SlurmRequest):
            check_request(settings, asked)

    def launch(self, settings: LaunchSettings) -> LaunchSettings:
        """A node may have a broker of its own; what that lends to loads the residency library there. Nodes see what the lab keeps
        of inputs, as they see the spool; a user's deputy keeps it in the user's directory."""
        broker = self._settings["slurm_broker"]
        elsewhere = super().launch(settings)
        library = library_for(self._settings["residency"]) if broker else ""
        paths = replace(
            elsewhere.paths,
            broker=broker,
            residency=library,
            inputs=settings.paths.inputs,
            shown=shown_in_images(self._settings["slurm_image_paths"]),
        )
        return replace(elsewhere, paths=paths, session_ports=self._settings["slurm_session_ports"], shards=self._shards)

    def read_address(self, job: Job) -> bytes | None:
        """What a session that somebody's deputy looks after has written about where it is; None for all others."""
        engine = self._owners.engine_of(job.id, job.attempt)
        return engine.read_address(job.id, job.attempt) if isinstance(engine, DeputyEngine) else None

    def deputy_of(self, job: Job) -> DeputyEngine | None:
        """In whose hands the files of a job's last attempt are; None when they are the lab's own."""
        try:
            user = user_file(self._spool, job.id, job.attempt).read_text().strip()
        except OSError:
            return None
        engine = self._owners.engine(user)
        return engine if isinstance(engine, DeputyEngine) else None

    def state(self) -> Sequence[str]:
        """Which partitions are Slurm's, and who jobs run as there."""
        partitions = [part.name for part in self.lab.rules.current.partitions.values() if slurm_of(part) is not None]
        named = f"partition{'' if len(partitions) == 1 else 's'} {', '.join(partitions)}"
        missing = missing_programs(self.lab.environ)
        if missing:
            return [f"{', '.join(missing)} not found, so jobs of {named} wait: install Slurm's commands (Debian: slurm-client)"]
        return [f"{named}; {self._identity.describe()}; `carrel doctor slurm` checks the site"]

    def _user_of(self, launch: Launch) -> str:
        """The Unix user as whom an attempt runs: the one that it was given to, whatever the mapping says today."""
        try:
            return user_file(self._spool, launch.job_id, launch.attempt).read_text().strip()
        except OSError:
            # The lab's own spool has files of what it has started itself.
            started = self._spool.attempt(launch.job_id, launch.attempt).launch.exists()
            return OWN if started else self._users.of(launch.owner)

    def _engine_of(self, user: str) -> Engine:
        lab = self.lab
        if user != OWN:
            return DeputyEngine(
                user=user,
                command=deputy_command(self._settings["slurm_deputy"], user),
                lab=lab.lab_id,
                spool=self._spool,
                snapshots=lab.home.snapshots,
                blobs=lab.home.blobs,
                files=lab.home.files,
                log=lab.home.logs / f"deputy.{user}.log",
                options=self._options,
                immediate=self._immediate,
                hold=self._hold,
                host=self._host,
                signer=self._key,
                listing=self._listing,
                environ=lab.environ,
            )
        return SlurmEngine(
            spool=self._spool,
            run_dir=lab.home.run / "slurm",
            lab=lab.lab_id,
            environ=lab.environ,
            commands=self._commands,
            listing=self._listing,
            options=self._options,
            immediate=self._immediate,
            hold=self._hold,
            host=self._host,
            order=lambda launch: self._key.order(OWN, to_plain(launch)),
            key=self._key.public,
            user=own_name(),
        )

    def _partition(self, place: str | None) -> tuple[str, Partition | None, SlurmPartition | None]:
        """The partition that stands in the place of a job's node: its name, and what the rules say of it now."""
        name = read_cluster(place)[1]
        partition = self.lab.rules.current.partitions.get(name)
        return name, partition, slurm_of(partition)

    def _shards(self, job: Job, task: TaskSpec) -> int:
        """Return how many shares of its GPU a task that gives it to cells asks for; 0: all of it.

        That is where each node that it may come to has a broker now that lets tasks lend. A task with shares and without a
        broker would have its GPU together with cells that nobody holds back.
        """
        _, partition, asked = self._partition(job.node)
        if partition is None or asked is None or not self._settings["slurm_broker"] or self._settings["slurm_lend"] < 1:
            return 0
        nodes = self._nodes.known(partition)
        lending = {one.node.split(".")[0] for one in self.lab.news() if one.current and one.status.get("tasks_lend")}
        if not all(node.name.split(".")[0] in lending for node in nodes if node.devices):
            return 0
        return task_shards(job.resources, task, nodes, read_options(asked.options))

    def _immediate(self, launch: Launch) -> bool:
        if launch.before_place:
            return False
        asked = self._partition(launch.node)[2]
        return asked is not None and asked.immediate and short_or_session(launch)

    def _hold(self, launch: Launch) -> float:
        asked = self._partition(launch.node)[2]
        return asked.hold_time if asked is not None and asked.immediate else 0

    def _options(self, launch: Launch) -> SlurmOptions:
        name, _, asked = self._partition(launch.node)
        if asked is None:
            raise Unavailable(
                f'Partition "{name}" is not one of a Slurm cluster any more.',
                remedy="Cancel the job, or ask an administrator to write it into carrel.toml again.",
            )
        return options_in(asked, launch)
