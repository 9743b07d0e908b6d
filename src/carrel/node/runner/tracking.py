"""Asking the lab for the job's MLflow run, when there was none yet at the start."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from carrel.core.domain.launch import Launch, LaunchTracking
from carrel.node.runner.asking import PAUSE, ask

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock

#: Seconds that the gateway is asked to wait for the run.
_WAIT = 20
_MLFLOW = re.compile(r"^\s*(?:name\s*=\s*[\"'])?mlflow(?:-skinny)?(?:[\"'\s=<>!~\[;@]|$)", re.MULTILINE)


def uses_mlflow(lock: str) -> bool:
    """Return whether an environment's lock (requirement lines or uv.lock) holds mlflow or mlflow-skinny."""
    return _MLFLOW.search(lock) is not None


def wait_for_run(
    launch: Launch, token: str, report: Callable[[str], None], monotonic: Clock, deadline: float
) -> LaunchTracking | None:
    """Return where the job's run is, waiting for the tracking server until `deadline`; None when it did not come.

    `GET /api/v1/jobs/{id}/run?wait=20` answers 200 with run_id, experiment_id and uri, or 202 or 204 while there is none.
    """
    report("waiting for the tracking server")
    refusals = 0
    while monotonic() < deadline:
        started = monotonic()
        status, body = ask(launch, token, f"run?wait={_WAIT}", patience=_WAIT + 10)
        if status == 200:
            answer = json.loads(body)
            uri = answer.get("uri") or (launch.tracking.uri if launch.tracking else "")
            return LaunchTracking(uri=uri, run_id=answer["run_id"], experiment_id=answer.get("experiment_id"))
        if status in (401, 403, 404, 410):  # it will not come
            refusals += 1
            if refusals >= 3:
                return None
        if monotonic() - started < PAUSE:
            time.sleep(PAUSE)
    return None
