"""Interactive work: a session is a job whose files outlive it and whose owner comes and goes."""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from carrel.core.control.broker_news import WHOSE, blanked, with_sessions
from carrel.core.control.hub import check_hub, check_variables
from carrel.core.control.lab import Lab
from carrel.core.control.ports import JobFilter, Submitted
from carrel.core.domain.errors import CarrelError, Conflict, Denied, Impossible, Invalid, NotFound
from carrel.core.domain.job import ACTIVE, Job, JobState
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.session import CODE_SERVER, OF_SITE, SessionKind, SessionSpec, shown_name
from carrel.core.domain.task import EnvironmentRecipe, TaskSpec
from carrel.core.domain.user import Caller, directory_name
from carrel.core.policy.access import Action, allowed, of_job
from carrel.core.policy.partitions import choose_partitions
from carrel.core.policy.session_gpus import SessionGpus, check_gpus, gpus_of_engine, gpus_on_own_nodes
from carrel.core.submission.image import read_session_image

#: Bytes of host memory of a session that asks for none in particular.
DEFAULT_MEMORY = 4 * 1024**3
#: The environment that everybody has, made on first use.
DEFAULT_ENVIRONMENT = "default"
#: Jobs whose owner is remembered.
_OWNERS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """How a running session is."""

    #: True when the program inside answers.
    ready: bool = False
    #: Connections that are open to it now.
    connections: int = 0
    #: Unix seconds since when it is idle, or None while it is not, or nobody knows.
    idle_since: float | None = None
    #: Unix seconds at which it is ended for being idle, or None.
    idle_end: float | None = None
    #: Why the lab does not reach it although it runs; "" when nothing is known to be wrong.
    trouble: str = ""
    #: Address of the machine that it runs on, where that is another one than the lab's and known; else "".
    host: str = ""


class SessionAccess(Protocol):
    """The way into sessions. `carrel.lab.server.sessions.RunningSessions` is one, and has the promises."""

    def open(self, job: Job, *, base: str, path: str, token_id: int) -> str: ...
    def address(self, job: Job, *, base: str) -> str: ...
    def status(self, job: Job) -> SessionStatus: ...
    def connected(self, job_id: int, attempt: int, change: int) -> None: ...
    def join_hub(self, job: Job, variables: Mapping[str, str]) -> int: ...


class Lender(Protocol):
    """What the brokers say about who has which device now."""

    #: Where the broker of the lab's own machine is found; "": none lends there.
    socket: str

    def status(self) -> Mapping[str, Any]:
        """The `status` message of the node's broker (`carrel.node.leases.protocol`), or {} while there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """What the broker of a cluster's node said last."""

    node: str
    #: Seconds since it was said.
    age: float
    #: False when it is too old for what is now, or its broker has ended.
    current: bool
    ended: bool
    #: Its `status` message (`carrel.node.leases.protocol`).
    status: Mapping[str, Any]


def no_nodes() -> Sequence[NodeReport]:
    """Of a lab without a cluster."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What somebody asks for; None where the lab decides."""

    kind: SessionKind = SessionKind.NOTEBOOK
    name: str | None = None
    directory: str | None = None
    environment: str = DEFAULT_ENVIRONMENT
    image: str = ""  #: Kernels and terminals run in it, in the place of an environment; "": none.
    gpus: int | None = None
    reserve: bool = False
    qos: str | None = None
    partition: str | None = None
    account: str | None = None
    cpus: int | None = None
    memory: int | None = None
    time: int | None = None
    #: Names of the caller's secrets.
    secrets: tuple[str, ...] = ()
    #: Address at a JupyterHub, "" for the lab's own.
    hub: str = ""


class Sessions:
    """Starts, finds and opens sessions. Thread-safe; raises the errors of `carrel.core.domain.errors`."""

    def __init__(
        self,
        lab: Lab,
        *,
        files: Path,
        door: SessionAccess,
        lender: Lender,
        check_environment: Callable[[str, str], None],
        default_environment: str = "",
        nodes: Callable[[], Sequence[NodeReport]] = no_nodes,
    ) -> None:
        """`files` is the directory with one directory of files for each user; `nodes` says who lends on a cluster's nodes.

        `check_environment` raises `NotFound` when a user (the first) has no environment of a name (the second).
        `default_environment` is what "default" is for a user who has none (`SessionSpec.default`).
        """
        self._check_environment = check_environment
        self._default_environment = default_environment
        self._lab = lab
        self.files = files
        self._door = door
        self._lender = lender
        self._nodes = nodes
        #: Of jobs that brokers of a cluster speak of.
        self._owners: dict[int, str] = {}

    def start(self, caller: Caller, asked: SessionOptions, *, key: str | None = None) -> Submitted:
        """Put a new session in line."""
        allowed(caller, Action.START_SESSION).check()
        qos = self._lab.policy.choose(asked.qos, JobKind.SESSION, asked.partition)
        check_gpus(asked.gpus, reserve=asked.reserve)
        image = read_session_image(asked.image, beside="" if asked.environment == DEFAULT_ENVIRONMENT else asked.environment)
        spec = SessionSpec(
            kind=asked.kind,
            image=asked.image,
            directory=str(self.files / directory_name(caller.user.subject)),
            environment=self._environment(caller, asked.environment),
            reserve=asked.reserve,
            idle_time=qos.idle_time,
            hub=check_hub(asked.hub, asked.kind),
        )
        refused: CarrelError | None = None
        for partition in self._partitions(asked, qos):
            try:
                if asked.directory is not None:
                    spec = replace(spec, directory=self._directory(caller, asked.directory, partition))
                self._check_reach(caller, asked, partition)
                self._check_vscode(asked, partition)
                spec = replace(spec, default=self._default(caller, partition))
                gpus = self._gpus(asked, partition)
                return self._submit(caller, asked, spec, image, qos, gpus, partition, key)
            except (Impossible, Denied) as error:  # perhaps in another one
                refused = refused or error
        raise refused or Impossible(f'No partition takes sessions with QoS "{qos.name}".', remedy="Ask an administrator.")

    def _submit(
        self,
        caller: Caller,
        asked: SessionOptions,
        spec: SessionSpec,
        image: EnvironmentRecipe,
        qos: QoS,
        gpus: SessionGpus,
        partition: Partition | None,
        key: str | None,
    ) -> Submitted:
        resources = Resources(
            cpus=1 if asked.cpus is None else asked.cpus,
            memory=DEFAULT_MEMORY if asked.memory is None else asked.memory,
            gpus=gpus.whole,
            time=qos.default_time if asked.time is None else asked.time,
        )
        task = TaskSpec(
            entry_point=asked.kind.value,
            # Not the launcher's path: the runner has its own idea of what `python` is.
            command=f"exec {_quoted(sys.executable)} -m carrel.notebooks.jupyter",
            snapshot="",
            outputs=(),
            environment=image,
            secrets=tuple(dict.fromkeys(asked.secrets)),
            session=replace(spec, gpus=gpus.gpus, shards=gpus.shards),
        )
        return self._lab.submit(
            caller,
            task,
            name=asked.name or asked.kind.value,
            resources=resources,
            qos=qos,
            partition=None if partition is None else partition.name,
            account=asked.account,
            kind=JobKind.SESSION,
            key=key,
        )

    def list(self, caller: Caller, *, everybody: bool = False, ended: bool = False) -> Sequence[Job]:
        """Sessions, newest first: those that have not ended, or all of the last 200."""
        which = JobFilter(
            owner=None if everybody else caller.user.subject,
            states=frozenset() if ended else ACTIVE,
            kind=JobKind.SESSION,
        )
        return self._lab.jobs(caller, which, limit=200)

    def get(self, caller: Caller, job_id: int) -> tuple[Job, SessionSpec]:
        """The session, if it is the caller's to see."""
        job = self._lab.job(caller, job_id)
        session = self._lab.task(caller, job_id).session
        if session is None:
            raise NotFound(f"Job {job_id} is a {job.kind}, not a session.", remedy="`carrel sessions` lists yours.")
        return job, session

    def status(self, job: Job) -> SessionStatus:
        """How the session is."""
        return self._door.status(job) if job.state is JobState.RUNNING else SessionStatus()

    def address(self, caller: Caller, job: Job, spec: SessionSpec, *, base: str) -> str:
        """The session's own origin while it runs, for who may read it; "" for others. It lets nobody in by itself."""
        if job.state is not JobState.RUNNING or spec.hub or not allowed(caller, Action.READ_JOB, of_job(job)):
            return ""
        return self._door.address(job, base=base)

    def open(self, caller: Caller, job_id: int, *, base: str, path: str = "") -> str:
        """A link that lets one browser in, once. Only for its owner: inside, one acts as them."""
        job, session = self.get(caller, job_id)
        allowed(caller, Action.ENTER_SESSION, of_job(job)).check()
        if job.state.ended:
            raise Conflict(
                f"Session {job_id} is {job.state}: {job.reason.message}", remedy="Start another; its files are still there."
            )
        if session.hub:
            raise Conflict(f"Session {job_id} is run for a JupyterHub.", remedy=f"Open it there: {session.hub}")
        return self._door.open(job, base=base, path=path, token_id=caller.token_id or 0)

    def join_hub(self, caller: Caller, job_id: int, variables: Mapping[str, str]) -> int:
        """Hand a session what its JupyterHub has for it; returns the port on which its server listens. Nothing of it is kept."""
        job, session = self.get(caller, job_id)
        allowed(caller, Action.ENTER_SESSION, of_job(job)).check()
        check_variables(variables)
        if not session.hub:
            raise Conflict(f"Session {job_id} is not run for a JupyterHub.", remedy='Start one with "hub".')
        if job.state is not JobState.RUNNING:
            raise Conflict(f"Session {job_id} is {job.state}: {job.reason.message}", remedy="Ask when it is ready.")
        return self._door.join_hub(job, variables)

    def connected(self, job: Job, change: int) -> None:
        """A connection to a session was opened (+1) or closed (-1)."""
        self._door.connected(job.id, job.attempt, change)

    @property
    def offers_vscode(self) -> bool:
        """True where the lab's machine has the program that shows VS Code in a browser."""
        return shutil.which(CODE_SERVER) is not None

    @property
    def lends(self) -> bool:
        """True where the GPUs of the lab's own machine are lent."""
        return bool(self._lender.socket)

    def gpus(self, caller: Caller) -> Mapping[str, Any]:
        """Who has which device now, who waits, whose state is where; what is not the caller's to see is blank."""
        return with_sessions(blanked(self._lender.status(), caller), self._session_name)

    def nodes(self, caller: Caller) -> Sequence[NodeReport]:
        """The same of each node of a cluster that has a broker, as it was when that was heard last."""
        return [
            replace(news, status=with_sessions(blanked(self._named(news.status), caller), self._session_name))
            for news in self._nodes()
        ]

    def _named(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        """A broker on a cluster may know owners by their Unix users only: whose a job is, the lab itself knows."""
        named = dict(status)
        for part in WHOSE:
            named[part] = [{**row, "owner": self._owner_of(row.get("job"))} for row in status.get(part, ())]
        return named

    def _session_name(self, job_id: object) -> str:
        """What a session is called, "" for what is none."""
        job = self._lab.jobs_store.get(job_id) if isinstance(job_id, int) and not isinstance(job_id, bool) else None
        return "" if job is None or job.kind is not JobKind.SESSION else shown_name(job.id, job.name)

    def _owner_of(self, job_id: object) -> str:
        """The owner of a job, "" for one that the lab does not have."""
        if not isinstance(job_id, int) or isinstance(job_id, bool):
            return ""
        owner = self._owners.get(job_id)
        if owner is None:
            job = self._lab.jobs_store.get(job_id)
            owner = "" if job is None else job.owner
            if len(self._owners) >= _OWNERS:
                self._owners = {}
            self._owners[job_id] = owner
        return owner

    def _partitions(self, asked: SessionOptions, qos: QoS) -> Sequence[Partition | None]:
        """Where the session may run, in the order in which it is tried; None stands for a lab without partitions."""
        parts = self._lab.policy.partitions
        if not parts and asked.partition is None:
            return (None,)
        found = choose_partitions(asked.partition, qos, parts)
        # A hub whose spawner was not set up for it reaches no session on a cluster's nodes, so those have to be asked for.
        here = [part for part in found if not part.cluster] if asked.hub and asked.partition is None else []
        return here or found

    def _check_reach(self, caller: Caller, asked: SessionOptions, partition: Partition | None) -> None:
        """Raise `Impossible` for an environment of the lab's that the owner's Unix user on a cluster cannot read."""
        name = asked.environment
        if partition is None or not partition.cluster or name == DEFAULT_ENVIRONMENT or posixpath.isabs(name):
            return
        try:
            user = self._lab.policy.unix_user(partition, caller.user.subject)
        except Denied:
            return  # they are refused there anyway, in better words
        if user:
            raise Impossible(
                f'Environment "{name}" is on the lab\'s own machine. In partition "{partition.name}" sessions of '
                f"{caller.user.name} run as the Unix user {user}, who cannot read it.",
                remedy=f'Use "{DEFAULT_ENVIRONMENT}" there and install what you need in it; or choose another partition.',
            )

    def _check_vscode(self, asked: SessionOptions, partition: Partition | None) -> None:
        """Raise `Impossible` where VS Code is asked for and cannot be shown."""
        if asked.kind is not SessionKind.VSCODE:
            return
        if partition is not None and partition.cluster:
            raise Impossible(
                f'VS Code in the browser runs on the lab\'s own machine, and partition "{partition.name}" is of a cluster.',
                remedy="Choose another partition; or use `carrel notebook` there.",
            )
        if asked.image:
            raise Impossible(
                f"VS Code in the browser does not run in an image, as {asked.image} is.",
                remedy="Leave the image out; or use `carrel notebook --image`.",
            )
        if not self.offers_vscode:
            raise Impossible(
                f"The lab's machine has no program {CODE_SERVER}, which shows VS Code in a browser.",
                remedy="Ask an administrator to install it; or let VS Code on your own machine enter a session: `carrel ssh`.",
            )

    def _default(self, caller: Caller, partition: Partition | None) -> str:
        """What "default" is for a user who has none: the site's environments are out of reach for Unix users on a cluster."""
        of_site = self._default_environment.startswith(OF_SITE)
        return "" if of_site and self._runs_as_owner(caller, partition) else self._default_environment

    def _gpus(self, asked: SessionOptions, partition: Partition | None) -> SessionGpus:
        if partition is not None and partition.cluster:
            return gpus_of_engine(asked.gpus, self._lab.policy.cluster(partition), reserve=asked.reserve)
        nodes = [node for node in self._lab.engine.nodes() if partition is None or partition.has(node.name)]
        return gpus_on_own_nodes(asked.gpus, nodes, reserve=asked.reserve)

    def _directory(self, caller: Caller, asked: str, partition: Partition | None) -> str:
        """Return the directory that the session is to work in, where `caller` may choose it: with their own rights alone."""
        if not posixpath.isabs(asked) or "\0" in asked:
            raise Invalid(f'"{asked[:200]}" is not an absolute path.', remedy="Name a directory by its absolute path.")
        if self._runs_as_owner(caller, partition):
            return os.path.normpath(asked)  # whether it is there only a process of theirs can tell
        if not allowed(caller, Action.NAME_PATH):
            raise Denied(
                f"{caller.user.name} may not choose the directory of a session.",
                remedy="Leave it out: your own directory of files is used. "
                "On a cluster, sessions that run as your own Unix user may work in any directory of yours (--partition).",
            )
        if not Path(asked).is_dir():
            raise Invalid(f'"{asked[:200]}" is not a directory on the lab\'s machine.', remedy="Name one by its absolute path.")
        return os.path.normpath(asked)

    def _runs_as_owner(self, caller: Caller, partition: Partition | None) -> bool:
        """Return whether the caller's sessions in a partition have the rights of a Unix user who is not the lab's own."""
        if partition is None or not partition.cluster:
            return False
        try:
            return bool(self._lab.policy.unix_user(partition, caller.user.subject))
        except Denied:
            return False  # they are refused there anyway, in better words

    def _environment(self, caller: Caller, asked: str) -> str:
        if posixpath.isabs(asked) and not allowed(caller, Action.NAME_PATH):
            raise Denied(
                f"{caller.user.name} may not name an environment by its path.",
                remedy="Make one of your own: `carrel env create`.",
            )
        if not asked or "\0" in asked or len(asked) > 4096:
            raise Invalid("The environment has no usable name.", remedy="`carrel env list` shows yours.")
        self._check_environment(caller.user.subject, asked)
        return asked


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
