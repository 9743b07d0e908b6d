"""Interactive work: a session is a job whose files outlive it and whose owner comes and goes."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from carrel.control.hub import check_hub, check_variables
from carrel.control.lab import Lab
from carrel.control.ports import JobFilter, Submitted
from carrel.domain.errors import Conflict, Denied, Impossible, Invalid, NotFound
from carrel.domain.job import ACTIVE, Job, JobState
from carrel.domain.qos import JobKind
from carrel.domain.resources import Resources
from carrel.domain.session import SessionKind, SessionSpec
from carrel.domain.task import TaskSpec
from carrel.domain.user import Caller

#: Bytes of host memory of a session that asks for none in particular.
DEFAULT_MEMORY = 4 * 1024**3


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


class SessionDoor(Protocol):
    """The way into sessions; `carrel.server.sessions` builds it on the session proxy."""

    def open(self, job: Job, *, base: str, path: str) -> str:
        """A link that lets one browser in, once; `base` is the address under which its owner reaches the lab."""
        ...

    def status(self, job: Job) -> SessionStatus:
        """How the session is."""
        ...

    def join_hub(self, job: Job, variables: Mapping[str, str]) -> int:
        """Hand `variables` to a session that waits for them, and return the port that it listens on.

        Raises `Conflict` when it does not wait (any more), `Unavailable` when it does not answer. Nothing is kept.
        """
        ...


class Lender(Protocol):
    """What the brokers say about who has which device now."""

    def status(self) -> Mapping[str, Any]:
        """The `status` message of the node's broker (`carrel.leases.protocol`), or {} while there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody asks for; None where the lab decides."""

    kind: SessionKind = SessionKind.NOTEBOOK
    name: str | None = None
    directory: str | None = None
    environment: str = "default"
    gpus: int | None = None
    reserve: bool = False
    qos: str | None = None
    partition: str | None = None
    account: str | None = None
    cpus: int | None = None
    memory: int | None = None
    time: int | None = None
    #: Address at a JupyterHub, "" for the lab's own.
    hub: str = ""


class Sessions:
    """Starts, finds and opens sessions. Thread-safe; raises the errors of `carrel.domain.errors`."""

    def __init__(
        self, lab: Lab, *, files: Path, door: SessionDoor, lender: Lender, check_environment: Callable[[str, str], None]
    ) -> None:
        """`files` is the directory with one directory of files for each user.

        `check_environment` raises `NotFound` when a user (the first) has no environment of a name (the second).
        """
        self._check_environment = check_environment
        self._lab = lab
        self._files = files
        self._door = door
        self._lender = lender

    def start(self, caller: Caller, asked: Asked, *, key: str | None = None) -> Submitted:
        """Put a new session in line."""
        if caller.job_id is not None:
            raise Denied("A job cannot start a session.", remedy="Start it with your own token.")
        qos = self._lab.policy.choose(asked.qos, JobKind.SESSION, asked.partition)
        gpus = self._gpus(asked)
        spec = SessionSpec(
            kind=asked.kind,
            directory=self._directory(caller, asked.directory),
            environment=self._environment(caller, asked.environment),
            gpus=gpus,
            reserve=asked.reserve,
            idle_time=qos.idle_time,
            hub=check_hub(asked.hub, asked.kind),
        )
        resources = Resources(
            cpus=1 if asked.cpus is None else asked.cpus,
            memory=DEFAULT_MEMORY if asked.memory is None else asked.memory,
            gpus=gpus if asked.reserve else 0,
            time=qos.default_time if asked.time is None else asked.time,
        )
        task = TaskSpec(
            entry_point=asked.kind.value,
            # Not the launcher's path: the runner has its own idea of what `python` is.
            command=f"exec {_quoted(sys.executable)} -m carrel.notebooks.jupyter",
            snapshot="",
            outputs=(),
            session=spec,
        )
        return self._lab.submit(
            caller,
            task,
            name=asked.name or asked.kind.value,
            resources=resources,
            qos=qos,
            partition=asked.partition,
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

    def open(self, caller: Caller, job_id: int, *, base: str, path: str = "") -> str:
        """A link that lets one browser in, once. Only for its owner: inside, one acts as them."""
        job, session = self.get(caller, job_id)
        if caller.user.subject != job.owner or caller.job_id is not None:
            raise Denied(f"Session {job_id} can be opened by its owner alone.", remedy="Ask them.")
        if job.state.ended:
            raise Conflict(
                f"Session {job_id} is {job.state}: {job.reason.message}", remedy="Start another; its files are still there."
            )
        if session.hub:
            raise Conflict(f"Session {job_id} is run for a JupyterHub.", remedy=f"Open it there: {session.hub}")
        return self._door.open(job, base=base, path=path)

    def join_hub(self, caller: Caller, job_id: int, variables: Mapping[str, str]) -> int:
        """Hand a session what its JupyterHub has for it; returns the port on which its server listens. Nothing of it is kept."""
        job, session = self.get(caller, job_id)
        if caller.user.subject != job.owner or caller.job_id is not None:
            raise Denied(f"Session {job_id} takes this from its owner alone.", remedy="Send it with their token.")
        check_variables(variables)
        if not session.hub:
            raise Conflict(f"Session {job_id} is not run for a JupyterHub.", remedy='Start one with "hub".')
        if job.state is not JobState.RUNNING:
            raise Conflict(f"Session {job_id} is {job.state}: {job.reason.message}", remedy="Ask when it is ready.")
        return self._door.join_hub(job, variables)

    def gpus(self, caller: Caller) -> Mapping[str, Any]:
        """Who has which device now, who waits, whose state is where; what is not the caller's to see is blank."""
        return _blanked(self._lender.status(), caller)

    def _gpus(self, asked: Asked) -> int:
        most = max((len(node.devices) for node in self._lab.engine.nodes()), default=0)
        if asked.gpus is None:
            return 1 if asked.reserve or most else 0
        if asked.gpus < 0:
            raise Invalid(f"gpus is {asked.gpus}.", remedy="Ask for 0 or more.")
        if asked.reserve and asked.gpus == 0:
            raise Invalid("A reservation of 0 GPUs.", remedy="Leave --reserve out, or ask for GPUs.")
        if asked.gpus > most:
            raise Impossible(
                f"The session asks for {asked.gpus} GPUs, but no node has more than {most}.", remedy=f"Ask for {most}."
            )
        return asked.gpus

    def _directory(self, caller: Caller, asked: str | None) -> str:
        if asked is None:
            return str(self._files / _file_name(caller.user.subject))
        if not caller.is_admin:
            raise Denied(
                f"{caller.user.name} may not choose the directory of a session.",
                remedy="Leave it out: your own directory of files is used.",
            )
        if not posixpath.isabs(asked) or "\0" in asked or not Path(asked).is_dir():
            raise Invalid(f'"{asked[:200]}" is not a directory on the lab\'s machine.', remedy="Name one by its absolute path.")
        return os.path.normpath(asked)

    def _environment(self, caller: Caller, asked: str) -> str:
        if posixpath.isabs(asked) and not caller.is_admin:
            raise Denied(
                f"{caller.user.name} may not name an environment by its path.",
                remedy="Make one of your own: `carrel env create`.",
            )
        if not asked or "\0" in asked or len(asked) > 4096:
            raise Invalid("The environment has no usable name.", remedy="`carrel env list` shows yours.")
        self._check_environment(caller.user.subject, asked)
        return asked


def _blanked(status: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    """The broker's status without the names of what the caller may not see."""
    if not status:
        return {}
    shown = dict(status)
    for part in ("tenants", "leases", "queue"):
        shown[part] = [_blank(row, caller) for row in status.get(part, ())]
    for part in ("history", "charges"):
        shown.pop(part, None)
    return shown


def _blank(row: Mapping[str, Any], caller: Caller) -> Mapping[str, Any]:
    mine = row.get("owner") == caller.user.subject
    if mine or caller.may_see(str(row.get("owner", ""))):
        return {**row, "mine": mine}
    hidden = {name: "" for name in ("owner", "label", "kernel", "cell") if name in row}
    return {**row, **hidden, "job": None, "pid": 0, "mine": False}


def _file_name(subject: str) -> str:
    """A directory name for a user: their subject where it is a plain name, else its characters in hexadecimal."""
    plain = subject.isascii() and subject.replace("-", "").replace("_", "").replace(".", "").isalnum() and subject[0].isalnum()
    return subject if plain and len(subject) <= 64 else "x" + subject.encode().hex()[:128]


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
