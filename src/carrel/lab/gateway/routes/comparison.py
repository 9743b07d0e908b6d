"""What differs between jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from carrel.lab.gateway.comparing import MOST_JOBS
from carrel.lab.gateway.context import Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import (
    API,
    ComparisonView,
    ExplainRequest,
    MatrixRequest,
    MatrixView,
    ResultsView,
    VerificationRequest,
    WhyView,
)

router = APIRouter(prefix=API, tags=["jobs"], route_class=Endpoint)


Jobs = Annotated[
    list[str],
    Query(
        min_length=2,
        max_length=MOST_JOBS,
        description='Numbers of jobs; "12_3" in an array, "12:1" for the first attempt of job 12.',
    ),
]


@router.get("/comparison", summary="What differs between attempts of jobs")
def comparison(ctx: Ctx, who: Who, job: Jobs) -> ComparisonView:
    """Only what is known to differ, the most likely cause of other results first; and what is not known of some of them."""
    return ctx.comparing.compare(who, job)


@router.get("/comparison/results", summary="Whether jobs came to the same results")
def results(
    ctx: Ctx,
    who: Who,
    job: Jobs,
    tolerance: Annotated[float, Query(ge=0, le=1, description="How far a metric may be away, by the larger of both.")] = 0,
    ignore: Annotated[
        list[str], Query(max_length=20, description="Patterns (`*`, `?`) of outputs and metrics that do not count.")
    ] = [],  # noqa: B006 - FastAPI copies it
) -> ResultsView:
    """Each is compared with the first: outputs by digest, metrics at all steps."""
    return ctx.comparing.results(who, job, tolerance=tolerance, ignore=ignore)


@router.post("/jobs/{job_id}/verification", summary="Whether jobs that repeat a job came to its results; kept with it")
def verify(ctx: Ctx, who: Who, job_id: int, asked: VerificationRequest) -> ResultsView:
    """As ``/comparison/results``, of jobs that `rerun` has made; the record of the job and its run in MLflow have the answer."""
    return ctx.comparing.verify(who, job_id, asked.repetitions, tolerance=asked.tolerance, ignore=asked.ignore)


@router.post("/comparison/why", summary="Where the search for the cause of different results stands")
def why(ctx: Ctx, who: Who, asked: ExplainRequest) -> WhyView:
    """What can be changed, which runs there were, what they came to; and the answer, once it is known. Nothing is submitted."""
    return ctx.explaining.look(who, asked)


@router.post("/comparison/why/runs", summary="Submit the runs that are needed next")
def why_runs(ctx: Ctx, who: Who, asked: ExplainRequest) -> WhyView:
    """Jobs of the caller's, each the first job with some facts of the second. Asking twice submits nothing twice."""
    return ctx.explaining.go_on(who, asked)


@router.post("/jobs/{job_id}/matrix", summary="How far the results of a job move: where its runs stand")
def matrix(ctx: Ctx, who: Who, job_id: int, asked: MatrixRequest) -> MatrixView:
    """The job under several seeds, each again in other ways, as a table. Nothing is submitted."""
    return ctx.matrices.look(who, job_id, asked)


@router.post("/jobs/{job_id}/matrix/runs", summary="Submit the runs of a matrix that can be submitted now")
def matrix_runs(ctx: Ctx, who: Who, job_id: int, asked: MatrixRequest) -> MatrixView:
    """Jobs of the caller's. Asking twice submits nothing twice; another order of samples waits for the run that has it."""
    return ctx.matrices.go_on(who, job_id, asked)
