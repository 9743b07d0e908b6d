"""Baselines of projects, and what moved."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Response

from carrel.core.control.baselines import Baselines
from carrel.lab.gateway.baselines import baseline_table, baseline_views, calibration_view
from carrel.lab.gateway.context import LARGEST, Ctx, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import (
    API,
    BaselineList,
    BaselineRequest,
    BaselineTable,
    BaselineView,
    CalibrationRequest,
    CalibrationView,
)

router = APIRouter(prefix=f"{API}/baselines", tags=["jobs"], route_class=Endpoint)

BaselineId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the baseline.")]


@router.get("", summary="List baselines of projects")
def list_baselines(
    ctx: Ctx,
    who: Who,
    owner: Annotated[Literal["me", "all"], Query(description="One's own, or everybody's (administrators).")] = "me",
) -> BaselineList:
    """By owner and project, each with what its last calibration came to."""
    found = _baselines(ctx).list(who, everybody=owner == "all")
    return BaselineList(baselines=baseline_views(ctx.drifts, who, found))


@router.post("", status_code=201, summary="Make a job the baseline of its project")
def set_baseline(ctx: Ctx, who: Who, asked: BaselineRequest, response: Response) -> BaselineView:
    """A job of the caller's that is COMPLETED. An earlier baseline of that project is replaced."""
    found = _baselines(ctx).set(who, asked.job, project=asked.project, tolerance=asked.tolerance, ignored=asked.ignore)
    response.headers["Location"] = f"{API}/baselines/{found.id}"
    return baseline_views(ctx.drifts, who, [found])[0]


@router.get("/{baseline_id}", summary="How later jobs of a project stand beside its baseline")
def get_baseline(baseline_id: BaselineId, ctx: Ctx, who: Who) -> BaselineTable:
    """The last 50 jobs, newest last: results, and what they ran with otherwise."""
    return baseline_table(ctx.drifts, who, _baselines(ctx).get(who, baseline_id))


@router.delete("/{baseline_id}", status_code=204, summary="Forget a baseline")
def remove_baseline(baseline_id: BaselineId, ctx: Ctx, who: Who) -> None:
    """Jobs stay as they are."""
    _baselines(ctx).remove(who, baseline_id)


@router.post("/{baseline_id}/calibrations", status_code=201, summary="Run a baseline again, to see what moved")
def calibrate(baseline_id: BaselineId, ctx: Ctx, who: Who, asked: CalibrationRequest) -> CalibrationView:
    """As a job of the caller's. One that the caller has begun so is given again until the caller has asked what came of it."""
    return calibration_view(ctx.drifts.calibrate(who, baseline_id, fresh=asked.fresh))


@router.get("/{baseline_id}/calibrations/{job_id}", summary="What came of running a baseline again")
def get_calibration(baseline_id: BaselineId, job_id: JobId, ctx: Ctx, who: Who) -> CalibrationView:
    """`outcome` is empty until the job has ended. Who has begun it begins another one after that."""
    return calibration_view(ctx.drifts.calibration(who, baseline_id, job_id))


def _baselines(ctx: Ctx) -> Baselines:
    return ctx.drifts.baselines
