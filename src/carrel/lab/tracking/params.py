"""Parameters of a job that runs again: all attempts have one run, in which MLflow lets no parameter change. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from carrel.lab.tracking.metrics import LOG_BATCH, run_in

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
