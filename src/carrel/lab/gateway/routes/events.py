"""The event stream, and the same events by the page."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse

from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job
from carrel.lab.gateway.context import LARGEST, Ctx, Gateway, Granted, JobId
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.events import EventFilter, page
from carrel.lab.gateway.gate import Grant
from carrel.wire.v1 import API, EventPage

router = APIRouter(prefix=API, tags=["events"], route_class=Endpoint)

After = Annotated[int, Query(ge=-1, le=LARGEST, description="Only events with larger ids; -1: only what comes from now on.")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="Sent by browsers that reconnect; goes before `after`.")
]
Types = Annotated[
    list[Literal["state", "queue", "log", "progress", "storage"]] | None, Query(alias="type", description="Only these types.")
]
Limit = Annotated[int, Query(ge=1, le=500, description="Of a page; a stream has no end.")]
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": EventPage,
        "description": "A page; or, with `Accept: text/event-stream`, a stream whose messages have `EventView` as data.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
    204: {"description": "A stream of a job that has ended and has nothing more to tell."},
}


@router.get("/events", summary="What happens to all of one's jobs", response_class=Response, responses=_ANSWERS)
async def events(
    request: Request,
    ctx: Ctx,
    grant: Granted,
    after: After = 0,
    last_event_id: LastEventId = None,
    types: Types = None,
    limit: Limit = 200,
) -> Response:
    """State changes, queue positions, progress and log text of the caller's jobs (administrators: of all jobs)."""
    which = EventFilter(after=start_of(after, last_event_id), types=frozenset(types) if types else None)
    return await answer(request, ctx, grant, which, limit)


@router.get("/jobs/{job_id}/events", summary="What happens to one job", response_class=Response, responses=_ANSWERS)
async def job_events(
    request: Request,
    job_id: JobId,
    ctx: Ctx,
    grant: Granted,
    after: After = 0,
    last_event_id: LastEventId = None,
    types: Types = None,
    limit: Limit = 200,
    *,
    waits: Annotated[
        bool, Query(description="Of a job's token: this job, which it submitted, may have its place meanwhile.")
    ] = False,
) -> Response:
    """The stream ends by itself after the job's last state, when all of its log has been sent."""
    which = EventFilter(after=start_of(after, last_event_id), job_id=job_id, types=frozenset(types) if types else None)
    found = await answer(request, ctx, grant, which, limit)
    parent = grant.caller.job_id
    if waits and parent is not None and isinstance(found, StreamingResponse):
        job = await to_thread.run_sync(ctx.lab.job, grant.caller, job_id)
        await to_thread.run_sync(ctx.lab.check_wait, parent, job)
        found.body_iterator = _while_waiting(ctx, parent, job, found.body_iterator)
    return found


async def _while_waiting(ctx: Gateway, waiter: int, job: Job, pieces: AsyncIterable[Any]) -> AsyncIterator[Any]:
    with ctx.lab.loop.waits(waiter, job):
        async for piece in pieces:
            yield piece


def start_of(after: int, last_event_id: str | None) -> int:
    """The id to go on from. Raises `Invalid` for a header that is no id."""
    if last_event_id is None or not last_event_id.strip():
        return after
    if not last_event_id.isascii() or not last_event_id.isdigit() or int(last_event_id) > LARGEST:
        raise Invalid(f'Last-Event-ID is "{last_event_id[:40]}".', remedy="Send back the id of the last event that you have.")
    return int(last_event_id)


async def answer(request: Request, ctx: Gateway, grant: Grant, which: EventFilter, limit: int) -> Response:
    """A stream when the client wants one, else a page."""
    caller, job_id = grant.caller, which.job_id

    def settled() -> EventFilter:
        after = ctx.lab.last_event_id() if which.after < 0 else which.after
        return replace(which, after=after, log=which.log if job_id is None else ctx.lab.may_read(caller, job_id))

    if "text/event-stream" not in request.headers.get("accept", ""):
        found = await to_thread.run_sync(lambda: page(ctx.lab, caller, settled(), limit).model_dump_json())
        return Response(found, media_type="application/json")
    which = await to_thread.run_sync(settled)
    if job_id is not None:
        job = await to_thread.run_sync(ctx.lab.job, caller, job_id)
        rest = (
            [None]
            if not job.state.ended
            else await to_thread.run_sync(lambda: ctx.lab.events(caller, after=which.after, job_id=job_id, limit=1))
        )
        if not rest:
            return Response(status_code=204)  # tells a browser not to come back (WHATWG HTML, server-sent events)
    return ctx.streams.response(grant, which)
