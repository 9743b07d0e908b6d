"""From what a hub's administrator and user say to the request for the lab and the variables of the session. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from carrel.wire import v1
from carrel_jupyterhub.words import LabRefused

#: What a user may choose, by the names of `carrel.wire.v1.SessionRequest`.
CHOICES = ("gpus", "reserve", "environment", "image", "qos", "partition", "account", "cpus", "memory", "time")
#: A hub's variables that say nothing to a session: which program to run is the lab's affair, and a session is never without the
#: files of its user, who may do in its kernels all that the server may.
_NOT_TOLD = frozenset({"JUPYTERHUB_DISABLE_USER_CONFIG", "JUPYTERHUB_ROOT_DIR", "JUPYTERHUB_SINGLEUSER_APP"})


def session_request(
    *,
    address: str,
    name: str,
    directory: str | None,
    defaults: Mapping[str, Any],
    options: Mapping[str, Any],
    cpu_limit: float | None,
    memory_limit: int | None,
) -> v1.SessionRequest:
    """The request for the session of the server at `address`. Raises `LabRefused` for what is not understood.

    What the user chose in `options` goes before the administrator's `defaults`, the hub's own limits (cores, bytes) before both.
    """
    unknown = sorted({*defaults, *options} - set(CHOICES))
    if unknown:
        raise LabRefused(f'The option "{unknown[0]}" is unknown. Valid here: {", ".join(CHOICES)}.')
    fields: dict[str, Any] = {**defaults, **options, "hub": address, "name": name, "directory": directory}
    if cpu_limit:
        fields["cpus"] = math.ceil(cpu_limit)
    if memory_limit:
        fields["memory"] = f"{math.ceil(memory_limit / 1024**2)}M"
    try:
        return v1.SessionRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise LabRefused(f'The option "{field}" is {str(first.get("input"))[:100]!r}: {first["msg"]}.') from error


def variables_for(environment: Mapping[str, Any], configured: Mapping[str, Any]) -> dict[str, str]:
    """Of all that a hub would set, what a session gets: what is the hub's own, and what the administrator `configured`."""
    return {
        name: str(value)
        for name, value in environment.items()
        if name in configured or (name.startswith("JUPYTERHUB_") and name not in _NOT_TOLD)
    }
