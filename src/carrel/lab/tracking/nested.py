"""Runs that a task's program starts by `mlflow.run` without naming a backend, where the task was submitted with `nested`.

MLflow would carry them out in the task's own process. Its program needs no change: ``sitecustomize`` of the client that travels
with tasks puts this in the place of MLflow's backend ``local``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from carrel.lab.tracking.project_backend import CarrelBackend, CarrelSubmittedRun


class NestedBackend(CarrelBackend):
    """Submits with the backend config that the task was given for its nested runs; what the call itself says goes before it."""

    def run(
        self,
        project_uri: str,
        entry_point: str,
        params: Mapping[str, Any] | None,
        version: str | None,
        backend_config: Mapping[str, Any],
        tracking_uri: str,
        experiment_id: str,
    ) -> CarrelSubmittedRun:
        """Submit a job of its own."""
        nested = json.loads(os.environ["CARREL_MLFLOW_NESTED"])
        settings = {**nested, "nested": nested, **backend_config}
        return super().run(project_uri, entry_point, params, version, settings, tracking_uri, experiment_id)


def nested_backend() -> NestedBackend:
    """What stands in MLflow's table of backends under "local"."""
    return NestedBackend()
