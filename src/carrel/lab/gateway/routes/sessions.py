"""Sessions: start, list, look, open; and who has which GPU now."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from carrel.core.control.sessions import SessionOptions, Sessions
from carrel.core.domain.errors import Invalid, Unavailable
from carrel.core.domain.session import SessionKind
from carrel.core.domain.units import parse_duration, parse_size
from carrel.lab.gateway.context import NO_ZERO, Base, Ctx, Gateway, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.routes.jobs import Key
from carrel.lab.gateway.views import lending_view, session_view
from carrel.wire.v1 import API, HubRequest, HubView, LendingView, SessionLink, SessionList, SessionRequest, SessionView

router = APIRouter(prefix=API, tags=["sessions"], route_class=Endpoint)

_LONGEST = 255


@router.post(
    "/sessions",
    status_code=201,
    summary="Start a session",
    responses={200: {"model": SessionView, "description": "Known by its key"}},
)
def start(request: SessionRequest, ctx: Ctx, who: Who, base: Base, response: Response, key: Key = None) -> SessionView:
    """A notebook server, a terminal or VS Code of the caller's own; it is a job, and waits like one."""
    sessions = _sessions(ctx)
    if key is not None and not (key.isprintable() and key.strip()):
        raise Invalid("The Idempotency-Key is empty or not printable.", remedy="Send a UUID, or leave the header out.")
    for what, text in (("name", request.name), ("account", request.account)):
        if text is not None and not (text.strip() and text.isprintable() and len(text) <= _LONGEST):
            raise Invalid(f'The {what} "{text[:40]}" cannot be used.', remedy=f"Use 1 to {_LONGEST} printable characters.")
    asked = SessionOptions(
        kind=SessionKind(request.kind),
        name=request.name,
        directory=request.directory,
        environment=request.environment,
        image=request.image or "",
        gpus=request.gpus,
        reserve=request.reserve,
        qos=request.qos,
        partition=request.partition,
        account=request.account,
        cpus=request.cpus,
        memory=None if request.memory is None else parse_size(request.memory),
        time=None if request.time is None else parse_duration(request.time),
        secrets=tuple(request.secrets),
        hub=request.hub or "",
    )
    submitted = sessions.start(who, asked, key=key)
    if not submitted.created:
        response.status_code = 200
    response.headers["Location"] = f"{API}/sessions/{submitted.job.id}"
    job, spec = sessions.get(who, submitted.job.id)
    return session_view(ctx.show(job, base), spec, sessions.status(job))


@router.get("/sessions", summary="List sessions, newest first")
def list_sessions(
    ctx: Ctx,
    who: Who,
    base: Base,
    owner: Annotated[Literal["me", "all"], Query(description="Own sessions, or everybody's (administrators).")] = "me",
    ended: Annotated[bool, Query(description="Also those that are over.")] = False,
) -> SessionList:
    """Those that have not ended; with `ended` the last 200."""
    sessions = _sessions(ctx)
    found = [sessions.get(who, job.id) for job in sessions.list(who, everybody=owner == "all", ended=ended)]
    return SessionList(sessions=[session_view(ctx.show(job, base), spec, sessions.status(job)) for job, spec in found])


@router.get("/sessions/{job_id}", summary="Look at one session")
def get_session(job_id: JobId, ctx: Ctx, who: Who, base: Base) -> SessionView:
    """The session, whether it answers, and its own address."""
    sessions = _sessions(ctx)
    job, spec = sessions.get(who, job_id)
    return session_view(ctx.show(job, base), spec, sessions.status(job), sessions.address(who, job, spec, base=base))


@router.post("/sessions/{job_id}/open", summary="A link that lets one browser in, once")
def open_session(
    job_id: JobId,
    ctx: Ctx,
    who: Who,
    base: Base,
    path: Annotated[
        str, Query(max_length=2000, pattern=NO_ZERO, description="What to open, relative to the session's files.")
    ] = "",
) -> SessionLink:
    """The link is good for a minute. Only the session's owner gets one."""
    return SessionLink(url=_sessions(ctx).open(who, job_id, base=base, path=path))


@router.put("/sessions/{job_id}/hub", summary="Tell a session what its JupyterHub has for it")
def join_hub(job_id: JobId, request: HubRequest, ctx: Ctx, who: Who) -> HubView:
    """Once, when the session is ready; it then starts the single-user server. Only the session's owner may do it."""
    return HubView(port=_sessions(ctx).join_hub(who, job_id, request.variables))


@router.get("/gpus", summary="Who has which GPU now, who waits, whose state is where")
def list_gpus(ctx: Ctx, who: Who) -> LendingView:
    """As the brokers say: the lab's own now, those of a cluster's nodes last; of others only that they are there."""
    sessions = _sessions(ctx)
    return lending_view(sessions.gpus(who), sessions.nodes(who), ctx.lab.machines.kept_devices(), ctx.free_slices(who))


def _sessions(ctx: Gateway) -> Sessions:
    if ctx.sessions is None:
        raise Unavailable("This lab offers no sessions.", remedy="Ask its administrator.")
    return ctx.sessions
