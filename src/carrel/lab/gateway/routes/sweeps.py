"""Sweeps: trials of one task with different parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from carrel.core.control.sweeps import SweepStatus
from carrel.core.domain.distribution import as_text
from carrel.core.domain.sweep import MOST_TRIALS, Sweep, Trial, best_of
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import LARGEST, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.views import view_of
from carrel.wire.v1 import (
    API,
    ResumeRequest,
    SweepDetail,
    SweepList,
    SweepRequest,
    SweepView,
    TrialReport,
    TrialVerdict,
    TrialView,
)

router = APIRouter(prefix=API, tags=["sweeps"], route_class=Endpoint)

SweepId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the sweep.")]
TrialNumber = Annotated[int, Path(ge=1, le=MOST_TRIALS * 10, description="Number of the trial in its sweep.")]


@router.post("/sweeps", status_code=201, summary="Start a sweep")
def start_sweep(request: SweepRequest, ctx: Ctx, who: Who, response: Response) -> SweepDetail:
    """Trials are chosen one after the other, and submitted as jobs while fewer than `parallel` run."""
    sweep = ctx.sweeps.start(who, ctx.trial_jobs.read(who, request))
    response.headers["Location"] = f"{API}/sweeps/{sweep.id}"
    return sweep_detail(ctx.sweeps.status(who, sweep.id))


@router.get("/sweeps", summary="List one's own sweeps, newest first")
def list_sweeps(
    ctx: Ctx,
    who: Who,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST, description="Only sweeps with smaller numbers: `next` of a page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> SweepList:
    """One page of sweeps with their trials by state."""
    return sweep_page(ctx.sweeps.list(who, limit=limit + 1, before=before), limit)


@router.get("/sweeps/{sweep_id}", summary="Look at a sweep")
def get_sweep(sweep_id: SweepId, ctx: Ctx, who: Who) -> SweepDetail:
    """The sweep with all its trials, and which is the best."""
    return sweep_detail(ctx.sweeps.status(who, sweep_id))


@router.post("/sweeps/{sweep_id}/stop", summary="Stop a sweep")
def stop_sweep(sweep_id: SweepId, ctx: Ctx, who: Who) -> SweepDetail:
    """No more trials start, and those that run are ended. Stopping again changes nothing."""
    ctx.sweeps.stop(who, sweep_id)
    return sweep_detail(ctx.sweeps.status(who, sweep_id))


@router.post("/sweeps/{sweep_id}/resume", summary="Go on with a sweep")
def resume_sweep(sweep_id: SweepId, request: ResumeRequest, ctx: Ctx, who: Who) -> SweepDetail:
    """One that was stopped or failed goes on; `trials` gives it more. Trials that have ended are not repeated."""
    ctx.sweeps.resume(who, sweep_id, trials=request.trials)
    return sweep_detail(ctx.sweeps.status(who, sweep_id))


@router.post("/sweeps/{sweep_id}/trials/{number}/values", summary="Report values of a trial")
def report(sweep_id: SweepId, number: TrialNumber, request: TrialReport, ctx: Ctx, who: Who, http: Request) -> TrialVerdict:
    """For trials, with the token of their job: values of the metric by step. A step that comes again has the newer value."""
    tell_audit(http.scope, line=False)  # it comes again and again; the job has its lines
    pruned = ctx.sweeps.report(who, sweep_id, number, {one.step: one.value for one in request.values})
    ctx.lab.gpu_use.hear_metric(who)
    return TrialVerdict(pruned=pruned)


def sweep_page(found: Sequence[tuple[Sweep, Mapping[str, int]]], limit: int) -> SweepList:
    """The first `limit` of these, and where the next page begins if there are more."""
    shown = [sweep_view(sweep, counts) for sweep, counts in found[:limit]]
    return SweepList(sweeps=shown, next=shown[-1].id if len(found) > limit else None)


def sweep_view(sweep: Sweep, counts: Mapping[str, int]) -> SweepView:
    """The sweep as the wire has it."""
    parameters = {name: str(one) for name, one in sweep.spec.parameters.items()}
    return view_of(SweepView, sweep, sweep.spec, parameters=parameters, counts=counts)


def sweep_detail(status: SweepStatus) -> SweepDetail:
    """The sweep with its trials."""
    counts: dict[str, int] = {}
    for one in status.trials:
        counts[one.state.value] = counts.get(one.state.value, 0) + 1
    best = best_of(status.sweep.spec, status.trials)
    return SweepDetail(
        **sweep_view(status.sweep, counts).model_dump(),
        all_trials=[view_of(TrialView, one) for one in status.trials],
        best=None if best is None else best.number,
        best_arguments=[] if best is None else _arguments(status.sweep, best),
        trouble=status.trouble,
    )


def _arguments(sweep: Sweep, trial: Trial) -> list[str]:
    task = sweep.spec.task
    values = {**task.get("parameters", {}), **{name: as_text(value) for name, value in trial.parameters.items()}}
    entry_point = task.get("entry_point", "main")
    chosen = [] if entry_point == "main" else ["-e", entry_point]
    arguments = task.get("arguments", [])
    return [
        *chosen,
        *(word for name, value in values.items() for word in ("-P", f"{name}={value}")),
        *(["--", *arguments] if arguments else []),
    ]
