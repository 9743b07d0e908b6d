"""Secrets of users: values go in, and out to the job that was promised them. The rest is `carrel.core.domain.secret.Secret`."""

from __future__ import annotations

from pydantic import Field

from carrel.wire.v1.base import Response


class SecretChange(Response):
    """A secret was set."""

    name: str
    #: False: it took the place of an earlier value.
    created: bool


class JobSecrets(Response):
    """What a job was promised, for the job itself."""

    secrets: dict[str, str] = Field(repr=False)
