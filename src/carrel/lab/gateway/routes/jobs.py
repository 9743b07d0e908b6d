"""Jobs: submit, list, look, cancel, repeat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import JSONResponse

from carrel.core.control.ports import JobFilter
from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import JobState
from carrel.core.domain.qos import JobKind
from carrel.lab.gateway.context import LARGEST, NO_ZERO, Base, Ctx, Granted, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.reports import session_times_view
from carrel.lab.gateway.views import job_detail, preview_view
from carrel.wire.v1 import API, JobDetail, JobPage, JobView, MetricsView, PreviewView, RunView, TaskRequest

#: Jobs of a page for which changes are tried that would make them start sooner.
_TRIED = 3

router = APIRouter(prefix=f"{API}/jobs", tags=["jobs"], route_class=Endpoint)

Key = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=255, description="The same key and the same body give the same job, once."),
]


@router.post("", status_code=201, summary="Submit a task", responses={200: {"model": JobView, "description": "Known by its key"}})
def submit(request: TaskRequest, ctx: Ctx, who: Who, base: Base, response: Response, key: Key = None) -> JobView:
    """Read the task's description out of an uploaded snapshot, check it, and put it in line."""
    if key is not None and not (key.isprintable() and key.strip()):
        raise Invalid("The Idempotency-Key is empty or not printable.", remedy="Send a UUID, or leave the header out.")
    submitted, notes = ctx.submissions.submit(who, request, key)
    if not submitted.created:
        response.status_code = 200
    response.headers["Location"] = f"{API}/jobs/{submitted.job.id}"
    return ctx.show(submitted.job, base).model_copy(update={"notes": list(notes), "cached": submitted.cached})


@router.post("/preview", summary="Ask when a task would start")
def preview(request: TaskRequest, ctx: Ctx, who: Who) -> PreviewView:
    """Read and check the task as for a submission, and say where it would stand in line. Nothing is submitted."""
    return preview_view(*ctx.submissions.preview(who, request))


@router.get("", summary="List jobs, newest first")
def list_jobs(
    ctx: Ctx,
    who: Who,
    base: Base,
    owner: Annotated[Literal["me", "all"], Query(description="Own jobs, or everybody's (administrators).")] = "me",
    state: Annotated[list[JobState] | None, Query(description="Only these states; may be given several times.")] = None,
    name: Annotated[str | None, Query(max_length=255, pattern=NO_ZERO, description="Only jobs of exactly this name.")] = None,
    before: Annotated[
        int | None, Query(ge=1, le=LARGEST, description="Only jobs with smaller numbers: `next` of a page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> JobPage:
    """One page of jobs."""
    which = JobFilter(owner=who.user.subject if owner == "me" else None, states=frozenset(state or ()), name=name)
    jobs = ctx.lab.jobs(who, which, before=before, limit=limit + 1)
    first = [job.id for job in jobs if job.state is JobState.PENDING][:_TRIED]
    shown = [ctx.show(job, base, alternatives=job.id in first) for job in jobs[:limit]]
    return JobPage(jobs=shown, next=shown[-1].id if len(jobs) > limit else None)


@router.get("/{job_id}", summary="Look at one job")
def get_job(job_id: JobId, ctx: Ctx, who: Who, base: Base) -> JobDetail:
    """The job with its description and attempts."""
    job = ctx.lab.job(who, job_id)
    hold = None if job.state.ended else ctx.lab.waiting(job_id, alternatives=True)
    task, attempts = ctx.lab.task(who, job_id), ctx.lab.attempts(who, job_id)
    qos = ctx.lab.policy.qos.get(job.qos)
    run_url = ctx.run_url(base, job.run_id)
    verified = ctx.lab.verifications.of(job_id)
    cells = ctx.lab.gpu_use.of_session(job) if job.kind is JobKind.SESSION else None
    detail = job_detail(ctx.lab.as_told(job), hold, run_url, task, attempts, qos, reasons=ctx.settings.reasons, verified=verified)
    return detail if cells is None else detail.model_copy(update={"cells": session_times_view(cells)})


@router.post("/{job_id}/cancel", status_code=202, summary="Ask for a job's end")
def cancel(job_id: JobId, ctx: Ctx, who: Who, base: Base) -> JobView:
    """A waiting job ends at once; a running one when its processes are gone. Cancelling an ended job changes nothing."""
    return ctx.show(ctx.lab.cancel(who, job_id), base)


@router.post("/{job_id}/rerun", status_code=201, summary="Run the same task again")
def rerun(job_id: JobId, ctx: Ctx, who: Who, base: Base, response: Response) -> JobView:
    """A new job with the same code, parameters and resources."""
    job = ctx.lab.repeating.rerun(who, job_id)
    response.headers["Location"] = f"{API}/jobs/{job.id}"
    return ctx.show(job, base)


@router.get("/{job_id}/record", summary="Everything needed to explain and repeat a job")
def record(job_id: JobId, ctx: Ctx, who: Who) -> dict[str, Any]:
    """Code, environment lock, inputs, seeds, hardware and outputs, each by digest."""
    return ctx.lab.produced.record(who, job_id)


@router.get("/{job_id}/metrics", summary="What the job's run has measured")
def metrics(job_id: JobId, ctx: Ctx, who: Who) -> MetricsView:
    """The last value of each metric, and all its steps where they are not too many; or why nothing is known of them."""
    return ctx.comparing.of_run(who, job_id)


@router.get(
    "/{job_id}/run",
    summary="The job's tracking run",
    response_model=RunView,
    responses={202: {"description": "There is none yet"}},
)
async def run(
    job_id: JobId,
    ctx: Ctx,
    grant: Granted,
    base: Base,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for it.")] = 0,
) -> Response:
    """The MLflow run of the job. 202 while there is none: the tracking server may be slow, the job does not wait for it."""

    def look() -> RunView | None:
        ctx.lab.job(grant.caller, job_id)
        task = ctx.lab.task(grant.caller, job_id)
        known = ctx.run_of(job_id)
        uri = task.tracking.uri if task.tracking is not None else None
        if known is None:
            return None
        return RunView(run_id=known[0], experiment_id=known[1], uri=uri or base.rstrip("/") + ctx.settings.tracking_path)

    found = await ctx.streams.poll(grant.caller, job_id, wait, look)
    if found is None:
        return JSONResponse({"message": "There is no run yet."}, 202, {"Retry-After": "1"})
    return Response(found.model_dump_json(), media_type="application/json")
