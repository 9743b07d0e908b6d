"""Lets a program find the job's run, and choose its experiment, as it does at home. Standard library alone, Python 3.8.

MLFLOW_RUN_ID names the job's own run, which MLflow continues wherever a run is begun. It refuses to when the program has chosen
another experiment, and says so with options that a task does not have. Here the program's choice wins: its runs are new ones in
that experiment, with the tag `carrel.job`, and the job's own run stays in the job's experiment.

A job whose environment is not known to have MLflow does not wait for its run before it starts. Its program does, when it imports
MLflow.
"""

from __future__ import annotations

import functools
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Set where the job began before its run was there. Whoever asks takes it away: processes below have no run of their own then,
#: as after MLflow has taken MLFLOW_RUN_ID away.
LATER = "CARREL_MLFLOW_RUN_LATER"
#: Seconds: for all of it, for which the lab is asked to wait, and between two tries.
_PATIENCE, _WAIT, _PAUSE = 60.0, 20, 1.0


def _ask_for_run() -> None:
    """Set MLFLOW_RUN_ID as soon as the lab knows the run."""
    if os.environ.pop(LATER, None) is None or "MLFLOW_RUN_ID" in os.environ:
        return
    import json  # only here: every Python of a task runs this file when it starts
    import ssl
    from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

    address = "%s/api/v1/jobs/%s/run?wait=%d" % (os.environ["CARREL_URL"], os.environ["CARREL_JOB_ID"], _WAIT)
    request = Request(address, headers={"Authorization": "Bearer " + os.environ["CARREL_TOKEN"]})
    context = ssl.create_default_context(cafile=os.environ.get("CARREL_CA_FILE"))
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    said, until = "there is none yet", time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        try:
            with opener.open(request, timeout=_WAIT + 10) as answer:
                if answer.status == 200:
                    os.environ["MLFLOW_RUN_ID"] = json.load(answer)["run_id"]
                    return
        except (OSError, ValueError) as error:  # the lab is away, or being started again
            said = str(error)
            if getattr(error, "code", 0) in (401, 403, 404):  # it will not come
                break
        time.sleep(_PAUSE)
    print("carrel: this job's MLflow run is not known (%s): MLflow begins another one." % said, file=sys.stderr, flush=True)


def _fluent(module: Any) -> None:
    _ask_for_run()
    own_run = os.environ.get("MLFLOW_RUN_ID")
    set_experiment, start_run = module.set_experiment, module.start_run

    def leave_run_unless_in(experiment_id: Any) -> None:
        if experiment_id is None or own_run is None or os.environ.get("MLFLOW_RUN_ID") != own_run:
            return
        try:
            own = module.MlflowClient().get_run(own_run).info.experiment_id
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
