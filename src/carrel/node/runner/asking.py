"""What a runner asks the lab itself, with the token of its job: the secrets that it was promised, and its MLflow run.

Secrets are in no launch file, and wait in no spool.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from carrel.core.domain.errors import CarrelError
from carrel.core.domain.launch import Launch, LaunchTracking

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock

#: Seconds between two tries while the gateway does not answer.
PAUSE = 1.0
#: Seconds that the gateway has for one answer.
_PATIENCE = 20.0
#: Seconds that the gateway is asked to wait for the run.
_WAIT = 20
#: A line of requirements, of uv.lock, or of conda's explicit list (`conda.explicit_lock`).
_MLFLOW = re.compile(
    r"^(?:\s*(?:name\s*=\s*[\"'])?|# pip )mlflow(?:-skinny)?(?:[\"'\s=<>!~\[;@]|$)|^\S+/mlflow(?:-skinny)?-[0-9]", re.MULTILINE
)


def ask(launch: Launch, token: str, what: str, *, patience: float) -> tuple[int, bytes]:
    """Return status and body of `GET /api/v1/jobs/{id}/{what}`; status 0 while the lab is down or being restarted."""
    address = urlsplit(launch.gateway)
    host, port = address.hostname or "localhost", address.port
    connection: http.client.HTTPConnection
    if address.scheme == "https":
        trusted = ssl.create_default_context(cadata=launch.authority or None)
        connection = http.client.HTTPSConnection(host, port, timeout=patience, context=trusted)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=patience)
    try:
        connection.request(
            "GET", f"{address.path}/api/v1/jobs/{launch.job_id}/{what}", headers={"Authorization": f"Bearer {token}"}
        )
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


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


def uses_mlflow(lock: str) -> bool:
    """Return whether an environment's lock holds mlflow or mlflow-skinny."""
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
