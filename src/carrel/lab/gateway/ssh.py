"""The way into a job by ssh: certificates that are good for minutes and for one attempt, and the connection to its server.

The key that signs them is this process' own. It is written nowhere, and after a restart of the lab there is another one.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from datetime import UTC, datetime

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import SSHCertificateBuilder, SSHCertificateType

from carrel.core.control.lab import Lab
from carrel.core.domain.errors import Conflict, Invalid
from carrel.core.domain.job import Job, JobState
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action
from carrel.core.spool.foreign import socket_at
from carrel.wire.v1 import SshView

#: Seconds for which a certificate is good, and how far the clock of a client may be behind.
LIFETIME, _BEHIND = 300, 300
#: Seconds that the server in the job may take to be there.
_PATIENCE = 5.0
#: What the certificate of a user allows. Neither an agent nor a display is led into a job.
_ALLOWED = (b"permit-port-forwarding", b"permit-pty")
#: What comes before the first byte of SSH (`carrel.node.runner.ssh_server`).
_HEAD = struct.Struct("!I")


class SshAccess:
    """Lets the owners of running jobs in. Thread-safe."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._key = Ed25519PrivateKey.generate()
        self._authority = _text(self._key.public_key())

    def certify(self, caller: Caller, job_id: int, public_key: str) -> SshView:
        """Sign the caller's key for the present attempt of their job. Raises `Conflict` unless it runs where ssh gets in."""
        job = self._enterable(caller, job_id)
        try:
            key = serialization.load_ssh_public_key(public_key.encode())
        except (ValueError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, (Ed25519PublicKey, EllipticCurvePublicKey, RSAPublicKey)):
            raise Invalid(
                "The public key is none that an ssh certificate can have.",
                remedy="Send one of `ssh-keygen -t ed25519`, as its file (.pub) has it.",
            )
        end = int(self._lab.clock()) + LIFETIME
        made = self._builder(key, SSHCertificateType.USER, _principal(job), f"{caller.user.subject} job {job.id}", end)
        for name in _ALLOWED:
            made = made.add_extension(name, b"")
        certificate = made.sign(self._key).public_bytes().decode()
        expires = datetime.fromtimestamp(end, UTC)
        return SshView(host=_host(job), certificate=certificate, authority=self._authority, expires=expires)

    def connect(self, caller: Caller, job_id: int) -> tuple[Job, socket.socket]:
        """Connect to a server that was started in the job for this connection, and has been told whom to let in."""
        job = self._enterable(caller, job_id)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(_PATIENCE)
            with socket_at(self._socket(job)) as place:
                connection.connect(place)
            message = json.dumps(self._told(job)).encode()
            connection.sendall(_HEAD.pack(len(message)) + message)
        except OSError:
            connection.close()
            raise _no_way(job) from None
        connection.setblocking(False)
        return job, connection

    def _enterable(self, caller: Caller, job_id: int) -> Job:
        job = self._lab.job(caller, job_id, Action.ENTER_JOB)
        if job.state is not JobState.RUNNING:
            remedy = "Only a job that runs can be entered." if job.state.ended else "Try again when it runs."
            raise Conflict(f"Job {job.id} is {job.state}: {job.reason.message}", remedy=remedy)
        if not os.path.lexists(self._socket(job)):
            raise _no_way(job)
        return job

    def _socket(self, job: Job) -> str:
        return str(self._lab.files.spool.attempt(job.id, job.attempt).ssh_socket)

    def _told(self, job: Job) -> dict[str, str]:
        key = Ed25519PrivateKey.generate()
        end = int(self._lab.clock()) + LIFETIME
        made = self._builder(key.public_key(), SSHCertificateType.HOST, _host(job), f"job {job.id}", end)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        return {
            "key": private.decode(),
            "certificate": made.sign(self._key).public_bytes().decode(),
            "authority": self._authority,
            "principal": _principal(job),
        }

    @staticmethod
    def _builder(
        key: Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey,
        kind: SSHCertificateType,
        principal: str,
        name: str,
        end: int,
    ) -> SSHCertificateBuilder:
        return (
            SSHCertificateBuilder()
            .public_key(key)
            .type(kind)
            .key_id(name.encode())
            .valid_principals([principal.encode()])
            .valid_after(end - LIFETIME - _BEHIND)
            .valid_before(end)
        )


def _principal(job: Job) -> str:
    """The name by which a job's server knows its owner. An attempt has its own, so that no certificate outlives it."""
    return f"job-{job.id}-attempt-{job.attempt}"


def _host(job: Job) -> str:
    return f"{job.id}.carrel"


def _no_way(job: Job) -> Conflict:
    return Conflict(
        f"Job {job.id} takes no ssh connections.",
        remedy="Jobs on a cluster and jobs in an image take none. Others do as soon as their command runs.",
    )


def _text(key: Ed25519PublicKey) -> str:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
