"""The few calls of MLflow's REST API that the lab itself makes, over the server's own socket.

https://mlflow.org/docs/latest/rest-api.html. Every call names the workspace it is for.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.lab.tracking.tenancy import DEFAULT_EXPERIMENT_NAME, WORKSPACE_HEADER

#: MLflow takes no more of each in one log-batch, and no more than `BATCH_LIMIT` altogether.
METRICS_LIMIT, PARAMS_LIMIT, TAGS_LIMIT, BATCH_LIMIT = 1000, 100, 100, 1000
#: Characters of a parameter and of a tag that MLflow keeps.
PARAM_LENGTH, TAG_LENGTH = 6000, 8000

#: MLflow's pages then show runs and metrics first, not those for language models.
_FOR_TRAINING = [{"key": "mlflow.experimentKind", "value": "custom_model_development"}]
#: The shorter way into MLflow (`carrel.lab.tracking.child`).
_LAB = {"x-carrel-lab": "1"}
_RETRIED = frozenset({401, 403, 408, 425, 429})


class Refused(CarrelError):
    """MLflow will never take this; the message is its own."""

    code = "refused"

    def __init__(self, message: str, *, error_code: str = "") -> None:
        super().__init__(message)
        self.error_code = error_code


class Troubled(Unavailable):
    """MLflow answered, but with a failure of its own (5xx): perhaps because of what it was asked."""


class MlflowRest:
    """A client for one thread or many. Raises `Refused`, `Troubled` or `Unavailable`."""

    def __init__(self, socket: Path, *, timeout: float = 60.0) -> None:
        """`socket` is where MLflow listens; `timeout` in seconds for each answer."""
        transport = httpx.HTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=4, keepalive_expiry=30))
        self._socket = socket
        self._http = httpx.Client(transport=transport, base_url="http://localhost", timeout=timeout, headers=_LAB)
        self._workspaces: set[str] = set()
        self._experiments: dict[tuple[str, str], str] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ensure_workspace(self, workspace: str) -> None:
        """The workspace exists afterwards."""
        if workspace in self._workspaces:
            return
        try:
            self._call("default", "POST", "/api/3.0/mlflow/workspaces", {"name": workspace})
        except Refused as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        self._workspaces.add(workspace)

    def experiment(self, workspace: str, name: str = DEFAULT_EXPERIMENT_NAME) -> str:
        """Id of the experiment, which exists afterwards."""
        known = self._experiments.get((workspace, name))
        if known is not None:
            return known
        self.ensure_workspace(workspace)
        with self._lock:
            try:
                made = self._call(workspace, "POST", "/api/2.0/mlflow/experiments/create", {"name": name, "tags": _FOR_TRAINING})
                found = str(made["experiment_id"])
            except Refused as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                path = f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(name, safe='')}"
                experiment = self._call(workspace, "GET", path)["experiment"]
                found = str(experiment["experiment_id"])
                if experiment.get("lifecycle_stage") == "deleted":
                    self._call(workspace, "POST", "/api/2.0/mlflow/experiments/restore", {"experiment_id": found})
        self._experiments[workspace, name] = found
        return found

    def forget_experiment(self, workspace: str, name: str) -> None:
        """Ask again for the experiment's id next time: its owner may have deleted it."""
        self._experiments.pop((workspace, name), None)

    def create_run(
        self, workspace: str, experiment_id: str, *, name: str, start_time: int, tags: Mapping[str, str], user: str = ""
    ) -> str:
        """Make a run and return its id; `start_time` in Unix milliseconds."""
        body = {
            "experiment_id": experiment_id,
            "run_name": name,
            "start_time": start_time,
            "user_id": user,
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        return str(self._call(workspace, "POST", "/api/2.0/mlflow/runs/create", body)["run"]["info"]["run_id"])

    def find_run(self, workspace: str, experiment_id: str, tags: Mapping[str, str]) -> str | None:
        """Id of the oldest run that bears the tags, or None."""
        body = {
            "experiment_ids": [experiment_id],
            "filter": " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items()),
            "order_by": ["attributes.start_time ASC"],
            "max_results": 1,
            "run_view_type": "ALL",
        }
        runs = self._call(workspace, "POST", "/api/2.0/mlflow/runs/search", body).get("runs") or []
        return str(runs[0]["info"]["run_id"]) if runs else None

    def run(self, workspace: str, run_id: str) -> Mapping[str, Any]:
        """The run's `info`."""
        info: Mapping[str, Any] = self._call(workspace, "GET", f"/api/2.0/mlflow/runs/get?run_id={quote(run_id, safe='')}")[
            "run"
        ]["info"]
        return info

    def run_data(self, workspace: str, run_id: str) -> Mapping[str, Any]:
        """The run's `data`: last values of its metrics, its parameters, and its tags."""
        found = self._call(workspace, "GET", f"/api/2.0/mlflow/runs/get?run_id={quote(run_id, safe='')}")
        data: Mapping[str, Any] = found["run"].get("data") or {}
        return data

    def metric_history(self, workspace: str, run_id: str, name: str, *, limit: int) -> Sequence[Mapping[str, Any]]:
        """Values of one metric of the run; of very many the first `limit`."""
        asked = f"run_id={quote(run_id, safe='')}&metric_key={quote(name, safe='')}&max_results={limit}"
        found = self._call(workspace, "GET", f"/api/2.0/mlflow/metrics/get-history?{asked}")
        return found.get("metrics") or ()

    def has_model(self, workspace: str, model_id: str) -> bool:
        """True when the logged model exists in the workspace."""
        try:
            self._call(workspace, "GET", f"/api/2.0/mlflow/logged-models/{quote(model_id, safe='')}")
        except Refused:
            return False
        return True

    def log_batch(
        self,
        workspace: str,
        run_id: str,
        *,
        metrics: Sequence[Mapping[str, Any]] = (),
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Add to the run; doing it twice is the same as once."""
        body = {
            "run_id": run_id,
            "metrics": list(metrics),
            "params": [{"key": key, "value": value} for key, value in (params or {}).items()],
            "tags": [{"key": key, "value": value} for key, value in (tags or {}).items()],
        }
        self._call(workspace, "POST", "/api/2.0/mlflow/runs/log-batch", body)

    def end_run(self, workspace: str, run_id: str, *, status: str, end_time: int | None) -> None:
        """Set the status (FINISHED, FAILED, KILLED) and the end in Unix milliseconds; or RUNNING, without an end."""
        body = {"run_id": run_id, "status": status} | ({} if end_time is None else {"end_time": end_time})
        self._call(workspace, "POST", "/api/2.0/mlflow/runs/update", body)

    def _call(self, workspace: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        response = self._send(workspace, method, path, json=body)
        try:
            return dict(response.json())
        except ValueError:
            raise Troubled(f"MLflow answered {method} {path.partition('?')[0]} with something that is not JSON.") from None

    def _send(self, workspace: str, method: str, path: str, **content: Any) -> httpx.Response:
        if not self._socket.exists():
            raise Unavailable("MLflow is not running.")
        try:
            response = self._http.request(method, path, headers={WORKSPACE_HEADER: workspace}, **content)
        except httpx.HTTPError as error:
            raise Unavailable(f"MLflow does not answer: {error or type(error).__name__}.") from None
        if response.is_success:
            return response
        code, words = _words(response)
        if response.status_code >= 500:
            raise Troubled(f"MLflow failed with {response.status_code}: {words}")
        if response.status_code in _RETRIED:
            raise Unavailable(f"MLflow answered {response.status_code}: {words}")
        raise Refused(words, error_code=code)


def _words(response: httpx.Response) -> tuple[str, str]:
    """MLflow's error code and message."""
    try:
        answer = response.json()
        return str(answer.get("error_code", "")), str(answer.get("message") or answer.get("detail") or response.text)
    except (ValueError, AttributeError):
        return "", response.text[:2000] or f"HTTP status {response.status_code}"
