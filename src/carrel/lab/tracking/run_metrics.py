"""What MLflow has of a run, for comparing it with others."""

from __future__ import annotations

from carrel.core.comparison import Curve, Metrics
from carrel.core.domain.errors import CarrelError
from carrel.lab.tracking.rest import MlflowRest
from carrel.lab.tracking.tenancy import workspace_of

#: Metrics whose steps are read, and steps of each; one that has more is compared by its last value.
_CURVES, _STEPS = 30, 10_000


def run_metrics(rest: MlflowRest, owner: str, run_id: str) -> Metrics:
    """Return the last values and the curves of the run of this user's; with the reason where MLflow does not tell."""
    try:
        data = rest.run_data(workspace_of(owner), run_id)
        last = {str(one["key"]): float(one["value"]) for one in data.get("metrics") or ()}
        parameters = {str(one["key"]): str(one["value"]) for one in data.get("params") or ()}
        tags = {str(one["key"]): str(one["value"]) for one in data.get("tags") or ()}
        names = [name for name in sorted(last) if not name.startswith("system/")][:_CURVES]
        curves = {name: curve for name in names if (curve := _curve(rest, owner, run_id, name)) is not None}
    except CarrelError as error:
        return Metrics(missing=f"The tracking server did not tell its metrics: {error.message}")
    return Metrics(last=last, curves=curves, parameters=parameters, tags=tags)


def _curve(rest: MlflowRest, owner: str, run_id: str, name: str) -> Curve | None:
    points = rest.metric_history(workspace_of(owner), run_id, name, limit=_STEPS)
    if len(points) >= _STEPS:
        return None
    ordered = sorted(points, key=lambda one: int(one.get("timestamp") or 0))
    return {int(one.get("step") or 0): float(one["value"]) for one in ordered}
