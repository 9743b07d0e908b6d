"""Who a client is: from its token, its job's launch file, and the claim of its job's runner; never from what it says."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carrel.core.control.launching import read_job_token
from carrel.core.domain.errors import CarrelError, Denied, Invalid, Unauthenticated
from carrel.core.domain.launch import Launch
from carrel.core.domain.node import Device
from carrel.core.domain.serial import from_plain
from carrel.core.spool import AttemptDirectory, Spool, read_claim
from carrel.node.broker.core.identity import Identity
from carrel.node.broker.foreign import read_foreign
from carrel.node.leases.protocol import KERNEL, OBSERVER, RESIDENCY, RUNNER, VERSION


def node_token(secret: bytes) -> str:
    """The token with which the lab itself looks at a node's broker; derived, never stored."""
    return hmac.new(secret, b"carrel-node", hashlib.sha256).hexdigest()


#: Roles of processes of a session, or of a worker of a pool, that borrow devices.
_BORROWS = (KERNEL, RESIDENCY)


class ClientAuthentication:
    """Lets clients in."""

    def __init__(self, *, secret: bytes, spool: Spool, shared: Sequence[Device] | None = None) -> None:
        """`shared`: the node's devices, where Slurm says which of them a job has a share of; None where the lab lends any."""
        self._secret = secret
        self._shared = shared
        self._spool = spool
        self._node_token = node_token(secret)

    def admit(self, hello: Mapping[str, Any], uid: int) -> Identity:
        """Who said `hello`, in a process of user `uid`.

        Raises an error of `carrel.core.domain.errors` that says why nobody is let in.
        """
        if hello.get("v") != VERSION:
            raise Invalid(
                f"The client speaks version {hello.get('v')!r} of the leases' protocol; this broker speaks {VERSION}.",
                remedy="Restart the session, so that both are of the same release.",
            )
        role, token = hello.get("role"), hello.get("token")
        if role not in (KERNEL, RUNNER, RESIDENCY, OBSERVER):
            known = ", ".join((KERNEL, RUNNER, RESIDENCY, OBSERVER))
            raise Invalid(f"There is no role {role!r}.", remedy=f"Be one of: {known}.")
        if not isinstance(token, str):
            raise Unauthenticated("The client shows no token.", remedy="Send the job's token (CARREL_TOKEN).")
        if role == OBSERVER and token.isascii() and hmac.compare_digest(token, self._node_token):
            return Identity(role=OBSERVER, sees_all=True)
        found = read_job_token(self._secret, token)
        if found is None:
            raise Unauthenticated("The token is not one of this lab's jobs.", remedy="Send the job's token (CARREL_TOKEN).")
        if found[1] == 0:
            raise Denied(f"Job {found[0]} has no place yet: its inputs are being fetched.", remedy="GPUs are for what runs.")
        directory = self._spool.attempt(found[0], found[1])
        if self._shared is not None and not directory.launch.exists():
            return self._foreign(role, uid, hello.get("attempt"), *found)
        return self._job(role, directory, *found)

    def _foreign(self, role: str, uid: int, path: object, job: int, attempt: int) -> Identity:
        """Of a job that runs as its owner, whose files are the owner's."""
        found = read_foreign(path, uid, job=job, attempt=attempt)
        if role == KERNEL and not found.borrows:
            raise _borrows_nothing(job, "task")
        if role == RESIDENCY and found.session and found.reserve:
            raise _has_its_own(job)
        return Identity(
            role=role,
            job=job,
            attempt=attempt,
            # Not by their name in the lab, which only the files say; the lab knows it by the job.
            owner=f"uid:{uid}",
            gpus=found.gpus,
            assigned=self._task(job, found.shares, found.borrows) if _is_task(role, found.borrows) else found.assigned,
            reserved=found.reserve,
            bound=self._bound(job, found.shares) if role in _BORROWS and found.borrows else (),
            memory=found.memory,
        )

    def _job(self, role: str, directory: AttemptDirectory, job: int, attempt: int) -> Identity:
        claim = read_claim(directory.claim)
        if claim is None or not claim.held:
            raise Denied(f"Attempt {attempt} of job {job} does not run.", remedy="Only what runs can borrow GPUs.")
        launch = _read_launch(directory, job)
        session = launch.task.session
        borrows = session is not None or launch.task.borrows > 0
        if role == KERNEL and not borrows:
            raise _borrows_nothing(job, launch.kind)
        if role == RESIDENCY and session is not None and session.reserve:
            raise _has_its_own(job)
        assigned = tuple(device.uuid for device in launch.devices)
        if self._shared is not None and _is_task(role, borrows):
            assigned = self._task(job, launch.shares, borrows)
        return Identity(
            role=role,
            job=job,
            attempt=attempt,
            owner=launch.owner,
            gpus=session.gpus if session is not None else launch.task.borrows or launch.resources.gpus,
            assigned=assigned,
            reserved=session is not None and session.reserve,
            bound=self._bound(job, launch.shares) if role in _BORROWS and borrows else (),
            memory=0 if self._shared is None else launch.resources.memory,
        )

    def _task(self, job: int, shares: Sequence[int], borrows: bool) -> tuple[str, ...]:
        """The devices that a task of a cluster gives to cells for a while. Whole ones are its own, and so are a session's."""
        if not shares or borrows:
            raise Denied(f"Job {job} has its GPUs from Slurm.", remedy="Use them without asking.")
        return self._bound(job, shares)

    def _bound(self, job: int, shares: Sequence[int]) -> tuple[str, ...]:
        if self._shared is None:
            return ()
        bound = tuple(device.uuid for device in self._shared if device.index in shares)
        if not bound or len(bound) < len(shares):
            where = ", ".join(map(str, shares)) or "none"
            raise Denied(
                f"Slurm gave job {job} shares of GPUs that are not lent here (positions: {where}).",
                remedy="Start it again; if that does not help, ask an administrator.",
            )
        return bound


def _is_task(role: str, borrows: bool) -> bool:
    """True for the runner of a job, and for the processes of one that borrows nothing."""
    return role == RUNNER or (role == RESIDENCY and not borrows)


def _has_its_own(job: int) -> Denied:
    return Denied(f"Session {job} has GPUs of its own.", remedy="Use them without asking.")


def _borrows_nothing(job: int, kind: str) -> Denied:
    return Denied(f"Job {job} is a {kind}, not a session: its GPUs are its own.", remedy="Use them without asking.")


def _read_launch(directory: AttemptDirectory, job: int) -> Launch:
    try:
        return from_plain(Launch, json.loads(directory.launch.read_text()))
    except (OSError, ValueError, TypeError, CarrelError) as error:
        raise Denied(f"The launch file of job {job} cannot be read: {error}.", remedy="Start the session again.") from error


def listening_at(path: Path, *, everybody: bool) -> socket.socket:
    """Return a unix socket that listens at `path`, to which this user can connect, or everybody can."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    mask = os.umask(0o111 if everybody else 0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(256)
    return listener
