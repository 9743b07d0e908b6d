"""The database that `mlflow run` makes in the present directory before it asks a backend."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient


def forget_new_store(uri: str) -> None:
    """Remove the database that `mlflow run` has made in this directory, only to look for the experiment before it asks a backend.

    One that was there before, or has runs, stays.
    """
    file = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or not file.is_file():
        return
    local = MlflowClient(tracking_uri=uri)
    experiments = local.search_experiments(view_type=ViewType.ALL)
    ours = all(one.creation_time / 1000 >= _began() for one in experiments)
    if ours and not local.search_runs([one.experiment_id for one in experiments], run_view_type=ViewType.ALL, max_results=1):
        file.unlink()


def _began() -> float:
    """When this process was started, in Unix seconds (proc_pid_stat(5), field 22); now, where that is not known."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
    except OSError:
        return time.time()
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
