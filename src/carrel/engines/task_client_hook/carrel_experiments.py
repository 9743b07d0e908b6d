"""Lets a program choose its experiment, as it does at home. Standard library alone, Python 3.8.

MLFLOW_RUN_ID names the job's own run, which MLflow continues wherever a run is begun. It refuses to when the program has chosen
another experiment, and says so with options that a task does not have. Here the program's choice wins: its runs are new ones in
that experiment, with the tag `carrel.job`, and the job's own run stays in the job's experiment.
"""

from __future__ import annotations

import functools
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RUN = os.environ.get("MLFLOW_RUN_ID")


def _fluent(module: Any) -> None:
    set_experiment, start_run = module.set_experiment, module.start_run

    def leave_run_unless_in(experiment_id: Any) -> None:
        if experiment_id is None or _RUN is None or os.environ.get("MLFLOW_RUN_ID") != _RUN:
            return
        try:
            own = module.MlflowClient().get_run(_RUN).info.experiment_id
        except module.MlflowException:  # MLflow will say it itself when a run is begun
            return
        if own != str(experiment_id):
            os.environ.pop("MLFLOW_RUN_ID")

    @functools.wraps(set_experiment)
    def set_ours(*args: Any, **kwargs: Any) -> Any:
        experiment = set_experiment(*args, **kwargs)
        leave_run_unless_in(experiment.experiment_id)
        return experiment

    @functools.wraps(start_run)
    def start_ours(run_id: Any = None, experiment_id: Any = None, *args: Any, **kwargs: Any) -> Any:
        if run_id is None:
            leave_run_unless_in(experiment_id)
        return start_run(run_id, experiment_id, *args, **kwargs)

    module.set_experiment, module.start_run = set_ours, start_ours


#: By the name of a module, what is done when it has been imported.
STEPS = {"mlflow.tracking.fluent": _fluent}
