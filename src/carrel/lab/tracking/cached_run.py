"""What a run that its caller has named gets when an earlier job's result is taken."""

from __future__ import annotations

import time

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

#: Values in one request: MLflow takes 100 parameters, and 1000 metrics.
_BATCH = 100


def copy_values(earlier: str, named: str) -> None:
    """Give the run `named` the parameters and the last metrics of the run `earlier`, and a tag that says where they are from.

    A parameter that it has already stays as it is: MLflow lets none be changed.
    """
    client, now = MlflowClient(), int(time.time() * 1000)
    data, has = client.get_run(earlier).data, client.get_run(named).data.params
    metrics = [Metric(key, value, now, 0) for key, value in data.metrics.items()]
    params = [Param(key, value) for key, value in data.params.items() if key not in has]
    for start in range(0, max(len(metrics), len(params)), _BATCH):
        end = start + _BATCH
        client.log_batch(named, metrics=metrics[start:end], params=params[start:end])
    client.set_tag(named, "carrel.cached_run", earlier)
