"""Secrets of users: names go both ways, values only in, and out to the job that was promised them."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, SecretStr, field_serializer

from carrel.wire.v1.base import Request, Response


class SecretRequest(Request):
    """Body of ``PUT /api/v1/secrets/{name}``."""

    value: SecretStr

    @field_serializer("value", when_used="json")
    def _sent(self, value: SecretStr) -> str:
        return value.get_secret_value()


class SecretView(Response):
    """One secret, without its value."""

    name: str
    set_at: datetime
    #: When a job was given it last; absent: never since it was set.
    used_at: datetime | None = None


class SecretList(Response):
    """The caller's own, by name."""

    secrets: list[SecretView]


class SecretChange(Response):
    """A secret was set."""

    name: str
    #: False: it took the place of an earlier value.
    created: bool


class JobSecrets(Response):
    """What a job was promised, for the job itself."""

    secrets: dict[str, str] = Field(repr=False)
