"""What is compared of a run, from a real MLflow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tracking_support import Tracking

from carrel.core.comparison import Metrics
from carrel.lab.tracking.rest import MlflowRest
from carrel.lab.tracking.run_metrics import run_metrics
from carrel.lab.tracking.tenancy import workspace_of

OWNER = "alice"


@pytest.mark.gate
@pytest.mark.mlflow
def test_last_values_curves_and_parameters_of_a_run(tracking: Tracking) -> None:
    rest = MlflowRest(tracking.server.socket)
    workspace = workspace_of(OWNER)
    run = rest.create_run(workspace, rest.experiment(workspace), name="compared", start_time=1, tags={})
    rows = [
        ("loss", 0, "1.0", 1),
        ("loss", 1, "0.5", 2),
        ("loss", 1, "0.4", 3),
        ("system/cpu", 0, "9.0", 1),
        ("bad", 0, "NaN", 1),
    ]
    metrics = [{"key": key, "step": step, "value": value, "timestamp": at} for key, step, value, at in rows]
    rest.log_batch(workspace, run, params={"lr": "0.1"})
    rest.log_batch(workspace, run, metrics=metrics)
    found = run_metrics(rest, OWNER, run)
    assert (found.missing, found.parameters, found.last["loss"]) == ("", {"lr": "0.1"}, 0.4)
    assert found.curves["loss"] == {0: 1.0, 1: 0.4}
    assert repr(found.curves["bad"][0]) == "nan"
    assert set(found.curves) == {"loss", "bad"}
    gone = run_metrics(rest, OWNER, "0" * 32)
    assert gone.missing.startswith("The tracking server did not tell its metrics: ")
    assert run_metrics(rest, "bob", run).missing, "the run of another user"
    rest.close()


def test_a_server_that_is_down_is_the_reason(tmp_path: Path) -> None:
    rest = MlflowRest(tmp_path / "nothing")
    assert run_metrics(rest, OWNER, "r") == Metrics(
        missing="The tracking server did not tell its metrics: MLflow is not running."
    )
    rest.close()
