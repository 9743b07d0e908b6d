"""Parameters of a job that runs again: all attempts have one run, in which MLflow lets no parameter change. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_LOG_PARAM, _LOG_BATCH = "/mlflow/runs/log-parameter", "/mlflow/runs/log-batch"


def run_of_params(path: str, body: bytes) -> str | None:
    """Return the run that a request logs parameters of, or None for a request that logs none."""
    if not path.endswith((_LOG_PARAM, _LOG_BATCH)):
        return None
    said = json.loads(body or b"{}")
    run_id = said.get("run_id") or said.get("runId") or said.get("run_uuid") or said.get("runUuid")
    return run_id if isinstance(run_id, str) and _rows(path, said) else None


def renamed_params(path: str, body: bytes, attempt: int, known: Mapping[str, str]) -> bytes:
    """Return the request, with ``attempt-N/`` before each parameter that has another value in `known`.

    What is not understood here stays as it is: MLflow will say what is wrong with it.
    """
    said = json.loads(body)
    for row in _rows(path, said):
        if isinstance(row, dict) and known.get(row.get("key", ""), row.get("value")) != row.get("value"):
            row["key"] = f"attempt-{attempt}/{row['key']}"
    return json.dumps(said).encode()


def _rows(path: str, said: Mapping[str, Any]) -> list[Any]:
    rows = [said] if path.endswith(_LOG_PARAM) else said.get("params")
    return rows if isinstance(rows, list) else []
