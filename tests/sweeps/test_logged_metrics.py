"""Which metrics a request to MLflow logs. No server."""

from __future__ import annotations

import pytest

from carrel.lab.tracking.params import metrics_in

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/api/2.0/mlflow/runs/log-metric", b'{"run_id": "r", "key": "a", "value": 1}', ("r", [("a", 0, 1.0)])),
        ("/api/2.0/mlflow/runs/log-metric", b'{"runId": "r", "key": "a", "value": "2", "step": "3"}', ("r", [("a", 3, 2.0)])),
        (
            "/ajax-api/2.0/mlflow/runs/log-batch",
            b'{"run_id": "r", "metrics": [{"key": "a"}, {"key": "b", "value": 1}, 5]}',
            ("r", [("b", 0, 1.0)]),
        ),
        ("/api/2.0/mlflow/runs/log-batch", b'{"run_id": "r", "metrics": [{"key": "a", "value": "x"}]}', None),
        ("/api/2.0/mlflow/runs/log-batch", b'{"run_id": "r", "metrics": 3}', None),
        ("/api/2.0/mlflow/runs/log-batch", b'{"metrics": [{"key": "a", "value": 1}]}', None),
        ("/api/2.0/mlflow/runs/log-metric", b"", None),
        ("/api/2.0/mlflow/runs/search", b'{"run_id": "r", "key": "a", "value": 1}', None),
    ],
)
def test_which_metrics_a_request_logs(path: str, body: bytes, told: object) -> None:
    assert metrics_in(path, body) == told
