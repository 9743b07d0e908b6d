"""Entering a job by ssh."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from carrel.wire.v1.base import Request, Response


class SshRequest(Request):
    """Body of ``POST /api/v1/jobs/{id}/ssh``."""

    #: The caller's public key, as OpenSSH has it in files that end with ``.pub``.
    public_key: str = Field(max_length=4096)


class SshView(Response):
    """A certificate with which an ssh client enters one job, for some minutes."""

    #: The host name that the certificate of the job's server has, like "12.carrel".
    host: str
    #: The certificate of the caller's key, as OpenSSH has it in files that end with ``-cert.pub``.
    certificate: str
    #: The public key that signs the certificates of the job's server: a line of known_hosts begins with ``@cert-authority``.
    authority: str
    #: When the certificate ends. Connections that are open by then go on.
    expires: datetime
