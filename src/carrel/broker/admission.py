"""Who a client is: from its token, its job's launch file, and the claim of its job's runner; never from what it says."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carrel.control.launching import read_job_token
from carrel.domain.errors import CarrelError, Denied, Invalid, Unauthenticated
from carrel.domain.launch import Launch
from carrel.domain.serial import from_plain
from carrel.leases.protocol import KERNEL, OBSERVER, RUNNER, VERSION
from carrel.spool import AttemptDirectory, Spool, read_claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a client may do."""

    role: str
    #: 0 for an observer of the whole node.
    job: int = 0
    attempt: int = 0
    #: Subject of the job's owner.
    owner: str = ""
    #: True for an observer of the whole node, who sees every name.
    sees_all: bool = False
    #: Devices that a cell gets.
    gpus: int = 0
    #: Devices that placement gave the job.
    assigned: tuple[str, ...] = ()
    #: True for kernels of a session that has devices of its own: they borrow none.
    reserved: bool = False

    def may_see(self, owner: str) -> bool:
        """True when what belongs to `owner` is shown with names."""
        return self.sees_all or (self.owner != "" and owner == self.owner)


def node_token(secret: bytes) -> str:
    """The token with which the lab itself looks at a node's broker; derived, never stored."""
    return hmac.new(secret, b"carrel-node", hashlib.sha256).hexdigest()


class Gatekeeper:
    """Lets clients in."""

    def __init__(self, *, secret: bytes, spool: Spool) -> None:
        self._secret = secret
        self._spool = spool
        self._node_token = node_token(secret)

    def admit(self, hello: Mapping[str, Any]) -> Identity:
        """Who said `hello`. Raises an error of `carrel.domain.errors` that says why nobody is let in."""
        if hello.get("v") != VERSION:
            raise Invalid(
                f"The client speaks version {hello.get('v')!r} of the leases' protocol; this broker speaks {VERSION}.",
                remedy="Restart the session, so that both are of the same release.",
            )
        role, token = hello.get("role"), hello.get("token")
        if role not in (KERNEL, RUNNER, OBSERVER):
            raise Invalid(f"There is no role {role!r}.", remedy=f"Be one of: {KERNEL}, {RUNNER}, {OBSERVER}.")
        if not isinstance(token, str):
            raise Unauthenticated("The client shows no token.", remedy="Send the job's token (CARREL_TOKEN).")
        if role == OBSERVER and token.isascii() and hmac.compare_digest(token, self._node_token):
            return Identity(role=OBSERVER, sees_all=True)
        found = read_job_token(self._secret, token)
        if found is None:
            raise Unauthenticated("The token is not one of this lab's jobs.", remedy="Send the job's token (CARREL_TOKEN).")
        return self._job(role, *found)

    def _job(self, role: str, job: int, attempt: int) -> Identity:
        directory = self._spool.attempt(job, attempt)
        claim = read_claim(directory.claim)
        if claim is None or not claim.held:
            raise Denied(f"Attempt {attempt} of job {job} does not run.", remedy="Only what runs can borrow GPUs.")
        launch = _read_launch(directory, job)
        session = launch.task.session
        if role == KERNEL and session is None:
            raise Denied(f"Job {job} is a {launch.kind}, not a session: its GPUs are its own.", remedy="Use them without asking.")
        return Identity(
            role=role,
            job=job,
            attempt=attempt,
            owner=launch.owner,
            gpus=session.gpus if session is not None else launch.resources.gpus,
            assigned=tuple(device.uuid for device in launch.devices),
            reserved=session is not None and session.reserve,
        )


def _read_launch(directory: AttemptDirectory, job: int) -> Launch:
    try:
        return from_plain(Launch, json.loads(directory.launch.read_text()))
    except (OSError, ValueError, TypeError, CarrelError) as error:
        raise Denied(f"The launch file of job {job} cannot be read: {error}.", remedy="Start the session again.") from error
