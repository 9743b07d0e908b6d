"""Metrics and parameters in a request to MLflow. Pure.

All attempts of a job have one run, in which MLflow lets no parameter change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

_LOG_PARAM = "/mlflow/runs/log-parameter"


def run_of_params(path: str, body: bytes) -> str | None:
    """Return the run that a request logs parameters of, or None for a request that logs none."""
    if not path.endswith((_LOG_PARAM, LOG_BATCH)):
        return None
    said = json.loads(body or b"{}")
    return run_in(said) if _rows(path, said) else None


def renamed_params(path: str, body: bytes, attempt: int, known: Mapping[str, str]) -> bytes:
    """Return the request, with ``attempt-N/`` before each parameter that has another value in `known`.

    What is not understood here stays as it is: MLflow will say what is wrong with it.
    """
    said = json.loads(body)
    for row in _rows(path, said):
        key = row.get("key") if isinstance(row, dict) else None
        if isinstance(key, str) and known.get(key, row.get("value")) != row.get("value"):
            row["key"] = f"attempt-{attempt}/{key}"
    return json.dumps(said).encode()


def _rows(path: str, said: Mapping[str, Any]) -> list[Any]:
    rows = [said] if path.endswith(_LOG_PARAM) else said.get("params")
    return rows if isinstance(rows, list) else []


_LOG_METRIC, LOG_BATCH = "/mlflow/runs/log-metric", "/mlflow/runs/log-batch"


def run_in(said: Mapping[str, Any]) -> str | None:
    """Return the run that the body of a request names, under any of the names that MLflow takes."""
    run_id = said.get("run_id") or said.get("runId") or said.get("run_uuid") or said.get("runUuid")
    return run_id if isinstance(run_id, str) else None


def metrics_in(path: str, body: bytes) -> tuple[str, Sequence[tuple[str, int, float]]] | None:
    """Return the run and the (name, step, value) of each metric, or None for a request that logs none.

    What is not understood here is left out: MLflow will say what is wrong with it.
    """
    if not path.endswith((_LOG_METRIC, LOG_BATCH)):
        return None
    said = json.loads(body or b"{}")
    rows = [said] if path.endswith(_LOG_METRIC) else said.get("metrics")
    run_id = run_in(said)
    if not isinstance(rows, list) or run_id is None:
        return None
    found = [one for row in rows if isinstance(row, dict) and (one := _metric(row)) is not None]
    return (run_id, found) if found else None


def _metric(row: Mapping[str, Any]) -> tuple[str, int, float] | None:
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        return str(row["key"]), int(row.get("step") or 0), float(row["value"])
    return None
