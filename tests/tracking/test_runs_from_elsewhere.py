"""A run that came to the lab's MLflow from elsewhere, beside a job of the lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest

from carrel import Client
from carrel.core.domain.errors import Invalid, NotFound
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab

pytestmark = pytest.mark.mlflow

PROJECT = """
entry_points:
  main:
    parameters: {rate: {type: float, default: 0.5}}
    command: "echo {rate} > outputs/x"
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    process = start_lab(tmp_path_factory.mktemp("elsewhere") / "home", tracking=True)
    yield process
    process.end_jobs()
    process.stop()


def a_run(lab: LabProcess, monkeypatch: pytest.MonkeyPatch, **parameters: object) -> str:
    """A run of a program that no lab has started: a laptop's, with MLflow's client."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", lab.token)
    client = mlflow.MlflowClient(f"{lab.url}/mlflow")
    run = client.create_run("0", run_name="laptop", tags={"mlflow.source.git.commit": "a" * 40})
    for name, value in parameters.items():
        client.log_param(run.info.run_id, name, value)
    for step in range(3):
        client.log_metric(run.info.run_id, "loss", 1.0 - step / 10, step=step)
    client.set_terminated(run.info.run_id)
    return str(run.info.run_id)


def test_what_is_known_of_it_is_compared_and_the_rest_is_named(
    lab: LabProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "MLproject").write_text(PROJECT)
    with Client(url=lab.url, token=lab.token, patience=PATIENCE) as client:
        wait_until(lambda: _ready(lab, monkeypatch), "MLflow")
        run, like = a_run(lab, monkeypatch, rate=0.25, layers=3), a_run(lab, monkeypatch, rate=0.25, layers=4)
        job = client.wait(client.submit_project(tmp_path).id).id
        found = client.compare(job, f"run:{run}")
        rate = next(one for one in found.differences if one.path == "rate")
        assert (rate.kind.value, [value.text for value in rate.values]) == ("parameter", ["0.5", "0.25"])
        assert [(one.label, one.id, one.name) for one in found.jobs][1] == (f"run:{run[:8]}", 0, "laptop")
        lacking = {kind.value: one.why for one in found.not_known for kind in one.kinds if not one.path}
        assert {"code", "package", "machine", "setting", "output"} <= lacking.keys()
        assert "no record of it" in lacking["code"]
        both = client.compare(f"run:{run}", f"run:{like}")
        assert [one.path for one in both.differences if one.kind.value == "logged parameter"] == ["layers"]
        # Metrics of all steps are compared: both runs have the same.
        assert not [one for one in both.differences if one.kind.value == "metric"]
        with pytest.raises(Invalid, match="names no attempt"):
            client.why(job, f"run:{run}")
        wait_until(lambda: client.run_of(job) is not None, "the job's run")
        with pytest.raises(Invalid, match=f"is that of job {job}"):
            client.compare(job, f"run:{client.run_of(job).run_id}")  # type: ignore[union-attr]
        with pytest.raises(Invalid, match="names no run"):
            client.compare(job, "run:x")
        stranger = client.add_user("bob", without_isolation=True).token
    with Client(url=lab.url, token=stranger, patience=PATIENCE) as other, pytest.raises(NotFound, match="no run"):
        other.compare(f"run:{run}", f"run:{like}")


def _ready(lab: LabProcess, monkeypatch: pytest.MonkeyPatch) -> bool:
    try:
        a_run(lab, monkeypatch)
    except mlflow.MlflowException:
        return False
    return True
