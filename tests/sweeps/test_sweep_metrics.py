"""Metrics that trials log to MLflow are what they report; and their runs are below that of the sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from swept import sweep, task, wait_for_sweep

from carrel import Client
from carrel.testing.waiting import wait_until
from support.lab_process import start_lab

#: What `mlflow.log_metric` and `log_metrics` send, and the same to a run that is not the trial's.
BODY = """
import json, urllib.request

uri, token = os.environ["MLFLOW_TRACKING_URI"], os.environ["MLFLOW_TRACKING_TOKEN"]


def post(path, **body):
    request = urllib.request.Request(
        f"{uri}/api/2.0/mlflow/{path}",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    return json.load(urllib.request.urlopen(request, timeout=120))


def own_run():
    # A task whose environment has MLflow finds it in MLFLOW_RUN_ID; this one stands on nothing.
    headers = {"Authorization": f"Bearer {token}"}
    address = f"{os.environ['CARREL_URL']}/api/v1/jobs/{os.environ['CARREL_JOB_ID']}/run?wait=20"
    while True:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=120) as answer:
            if answer.status == 200:
                return json.load(answer)


found = own_run()
run = found["run_id"]
post("runs/log-metric", run_id=run, key="loss", value=100.0, step=0, timestamp=1)
metrics = [{"key": "loss", "value": float(given.x), "step": 1, "timestamp": 2}]
metrics.append({"key": "other", "value": -5.0, "step": 9, "timestamp": 2})
post("runs/log-batch", run_id=run, metrics=metrics)
other = post("runs/create", experiment_id=found["experiment_id"], start_time=1)["run"]["info"]["run_id"]
post("runs/log-metric", run_id=other, key="loss", value=-1000.0, step=2, timestamp=3)
"""


@pytest.mark.mlflow
def test_metrics_of_mlflow_are_reports_and_runs_have_a_parent(tmp_path: Path) -> None:
    lab = start_lab(tmp_path / "home", "--cpus", "4", simulate_gpus=0, tracking=True)
    with Client(url=lab.url, token=lab.token) as client:
        wait_until(lambda: client.lab().tracking == "ready")
        begun = sweep(client, task(tmp_path / "code", BODY), {"x": "uniform(0, 1)"}, options={"trials": 3, "parallel": 2})
        ended = wait_for_sweep(client, begun.id)
        assert (ended.state, ended.counts) == ("COMPLETED", {"COMPLETED": 3}), ended
        assert [trial.value for trial in ended.all_trials] == [trial.parameters["x"] for trial in ended.all_trials]
        (times,) = client.report_starts().classes
        assert times.to_metric.count == 3
        assert (times.waited.median or 0) < (times.to_metric.median or 0) <= (times.to_metric.p95 or 0)
        runs = [client.job(trial.job_id or 0).run_id or "" for trial in ended.all_trials]
        tags = [_run(client, run_id)["data"]["tags"] for run_id in runs]
        said = [{one["key"]: one["value"] for one in row} for row in tags]
        assert [row["carrel.trial"] for row in said] == ["1", "2", "3"]
        (parent,) = {row["mlflow.parentRunId"] for row in said}
        _wait_for_status(client, parent, "FINISHED")
        assert _run(client, parent)["info"]["run_name"] == f"sweep {begun.id}: train"
    lab.end_jobs()
    lab.stop()


@pytest.mark.mlflow
def test_the_run_of_a_sweep_has_the_state_of_the_sweep(tmp_path: Path) -> None:
    """Also when the server is killed; the first trial's end is not the sweep's."""
    home, flags = tmp_path / "home", tmp_path / "flags"
    flags.mkdir()
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0, tracking=True)
    with Client(home=home) as client:
        wait_until(lambda: client.lab().tracking == "ready")
        body = "carrel.report(1.0)\nif trial > 1:\n    wait_for(f'go-{trial}')\n"
        options = {"trials": 2, "parallel": 1}
        code = task(tmp_path / "code", body)
        begun = sweep(client, code, {"x": "uniform(0, 1)"}, parameters={"flags": str(flags)}, options=options)
        wait_for_sweep(client, begun.id, lambda one: len(one.all_trials) == 2)
        job_id = client.sweep(begun.id).all_trials[0].job_id or 0
        assert client.report_starts().classes[0].to_metric.count == 1
        first = wait_until(lambda: client.job(job_id).run_id)
        assert first is not None
        _wait_for_status(client, first, "FINISHED")
        tags = {one["key"]: one["value"] for one in _run(client, first)["data"]["tags"]}
        parent = tags["mlflow.parentRunId"]
        assert _run(client, parent)["info"]["status"] == "RUNNING"
        client.stop_sweep(begun.id)
        lab.kill()
        lab = start_lab(home, "--cpus", "4", simulate_gpus=0, tracking=True)
        wait_until(lambda: client.lab().tracking == "ready")
        _wait_for_status(client, parent, "KILLED")
        client.resume_sweep(begun.id)
        _wait_for_status(client, parent, "RUNNING")
        (flags / "go-3").touch()
        wait_for_sweep(client, begun.id)
        _wait_for_status(client, parent, "FINISHED")
    lab.end_jobs()
    lab.stop()


def _wait_for_status(client: Client, run_id: str, status: str) -> None:
    def there() -> bool:
        try:
            return bool(_run(client, run_id)["info"]["status"] == status)
        except httpx.HTTPStatusError as error:  # MLflow is busy, or not up again
            if not error.response.is_server_error:
                raise
            return False

    wait_until(there)


def _run(client: Client, run_id: str) -> dict[str, Any]:
    answer = httpx.get(
        f"{client.url}/mlflow/api/2.0/mlflow/runs/get",
        params={"run_id": run_id},
        headers={"Authorization": f"Bearer {client.token}"},
        timeout=120,
    )
    found: dict[str, Any] = answer.raise_for_status().json()["run"]
    return found
