"""Which notebook a run of MLflow comes from: MLflow would name the program that runs the kernel."""

import json
import os
from contextlib import suppress

_CONTEXT = "MLFLOW_RUN_CONTEXT"


def name_notebook():
    """Add the notebook to the tags that MLflow writes at each run, where the lab has set some."""
    notebook = os.path.basename(os.environ.get("JPY_SESSION_NAME") or "")
    with suppress(ValueError):
        tags = json.loads(os.environ.get(_CONTEXT) or "null")
        if notebook and isinstance(tags, dict) and "carrel.session" in tags:
            named = {"mlflow.source.name": notebook, "mlflow.source.type": "NOTEBOOK"}
            os.environ[_CONTEXT] = json.dumps({**named, **tags})
