"""Asking the lab for the secrets that the job was promised: they are in no launch file, and wait in no spool."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch
from carrel.node.runner.asking import PAUSE, ask

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock

#: Seconds that the gateway has for one answer.
_PATIENCE = 20.0


class SecretsMissing(CarrelError):
    """The job does not get the secrets that it was promised."""

    code = "input_failed"


def fetch_secrets(
    launch: Launch, token: str, report: Callable[[str], None], monotonic: Clock, deadline: float
) -> Mapping[str, str]:
    """Return the values by name, waiting for a lab that is down until `deadline`. Raises `SecretsMissing`."""
    names = launch.task.secrets
    if not names:
        return {}
    if not launch.gateway:
        raise SecretsMissing(f"The lab has no address, so the secret {names[0]} cannot be fetched.")
    told = False
    while True:
        status, body = ask(launch, token, "secrets", patience=_PATIENCE)
        if status == 200:
            return dict(json.loads(body)["secrets"])
        if 400 <= status < 500 and status != 429:
            raise _refused(status, body)
        if monotonic() >= deadline:
            raise SecretsMissing(
                f"The lab at {launch.gateway} did not answer, and the job needs the secret {names[0]} from it.",
                remedy="Look whether the lab runs, and submit the job again.",
            )
        if not told:
            report(f"waiting for the lab at {launch.gateway}, which keeps the secret {names[0]}")
            told = True
        time.sleep(PAUSE)


def _refused(status: int, body: bytes) -> SecretsMissing:
    said, remedy = f"The lab refused the job its secrets ({status}).", ""
    with suppress(ValueError, AttributeError, TypeError):
        problem = json.loads(body)
        said, remedy = str(problem["detail"]), str(problem.get("remedy") or "")
    return SecretsMissing(said, remedy=remedy)
