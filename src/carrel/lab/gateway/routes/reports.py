"""Reports of use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from carrel.core.gpu_use import Grouping
from carrel.lab.gateway.context import LARGEST, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.reports import attempt_page, session_report_view, start_report_view, use_report_view
from carrel.wire.v1 import API, ExportedAttemptPage, SessionReportView, StartReportView, UseReportView

router = APIRouter(prefix=API, tags=["lab"], route_class=Endpoint)

_From = Annotated[
    datetime | None, Query(alias="from", description="In UTC where it does not say; by default four weeks before `to`.")
]
_To = Annotated[datetime | None, Query(description="Then the report is over; by default now.")]


@router.get("/report/use", summary="Who used GPUs for how long, and what came of it")
def use(
    ctx: Ctx,
    who: Who,
    begin: _From = None,
    to: _To = None,
    by: Grouping = Grouping.USER,
    anonymous: Annotated[bool, Query(description="In rows of at least five people.")] = False,
) -> UseReportView:
    """Of the caller's own jobs; account managers also of their accounts', administrators of everybody's."""
    if anonymous:
        return use_report_view(ctx.lab.gpu_use.anonymous(who, begin=_seconds(begin), end=_seconds(to), by=by))
    found = use_report_view(ctx.lab.gpu_use.use(who, begin=_seconds(begin), end=_seconds(to), by=by))
    return found.model_copy(update={"hint": ctx.lab.worth_changing(who)})


@router.get("/report/starts", summary="How long jobs take from submission to their first output, by class of service")
def starts(ctx: Ctx, who: Who, begin: _From = None, to: _To = None) -> StartReportView:
    """Of first attempts that got their place in the range; jobs that waited for others are left out."""
    return start_report_view(ctx.lab.gpu_use.starts(who, begin=_seconds(begin), end=_seconds(to)))


@router.get("/report/sessions", summary="Where the time of sessions went that borrow GPUs")
def sessions(
    ctx: Ctx, who: Who, begin: _From = None, to: _To = None, by: Literal["user", "account", "qos"] = "user"
) -> SessionReportView:
    """Of the same people's sessions that were open in the range. Sessions with GPUs of their own are left out."""
    return session_report_view(ctx.lab.gpu_use.sessions(who, begin=_seconds(begin), end=_seconds(to), by=by))


@router.get("/report/jobs", summary="Attempts with their jobs, for formats of others")
def attempts(
    ctx: Ctx,
    who: Who,
    begin: _From = None,
    to: _To = None,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=5_000, description="Jobs, each with all its attempts.")] = 1000,
) -> ExportedAttemptPage:
    """Of the same people's jobs that were there in the range, in the order of jobs. Ask for further pages with the range of the
    first."""
    return attempt_page(ctx.lab.gpu_use.attempts(who, begin=_seconds(begin), end=_seconds(to), after=after, limit=limit))


@router.get(
    "/metrics",
    summary="Counters of use for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}},
)
def metrics(ctx: Ctx, who: Who) -> Response:
    """Of everybody's use, for administrators: counters that only grow, and begin at 0 with the server."""
    return Response(ctx.lab.gpu_use.counters(who), media_type="text/plain; version=0.0.4; charset=utf-8")


def _seconds(at: datetime | None) -> float | None:
    if at is None:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
