"""Named environments: list, make, look, share, go back, remove."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from starlette.responses import StreamingResponse

from carrel.core.domain.errors import NotFound
from carrel.lab.gateway.context import NO_ZERO, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.environments import Environments
from carrel.node.environments.named import EVERYBODY, Work
from carrel.wire.v1 import (
    API,
    EnvironmentLockText,
    EnvironmentProgress,
    EnvironmentRequest,
    EnvironmentRestoreRequest,
    EnvironmentShareRequest,
    NamedEnvironmentList,
    NamedEnvironmentView,
)

router = APIRouter(prefix=API, tags=["environments"], route_class=Endpoint)

Name = Annotated[
    str, Path(max_length=400, pattern=NO_ZERO, description='One\'s own ("torch"), or with its owner ("ada/torch", "site/torch").')
]
_LINES = "application/x-ndjson"


def _answers(status: int) -> dict[int | str, dict[str, Any]]:
    return {
        status: {
            "model": EnvironmentProgress,
            "description": "One `EnvironmentProgress` a line while it is built; the last has `environment` or `problem`. "
            "Blank lines keep the connection open. If the client closes it, the build ends and leaves nothing.",
            "content": {_LINES: {"schema": {"type": "string"}}},
        }
    }


@router.get("/environments", summary="List named environments")
def list_environments(ctx: Ctx, who: Who) -> NamedEnvironmentList:
    """One's own, the site's, and those that others share with the caller."""
    return ctx.environments.list(who)


@router.post("/environments", summary="Make an environment", status_code=201, response_class=Response, responses=_answers(201))
def create(request: EnvironmentRequest, ctx: Ctx, who: Who) -> Response:
    """From a version of Python, requirements, a project, another environment's lock, or a prefix on the lab's machine."""
    environments = ctx.environments
    return _stream(environments, environments.creation(who, request), 201)


@router.get("/environments/{name:path}/lock", summary="What is installed in an environment")
def get_lock(
    name: Name,
    ctx: Ctx,
    who: Who,
    which: Annotated[str | None, Query(alias="lock", max_length=80, description="Beginning of an earlier lock's digest.")] = None,
) -> EnvironmentLockText:
    """Requirement lines with exact versions, as installed now or at an earlier time."""
    return ctx.environments.lock(who, name, which)


@router.post("/environments/{name:path}/share", summary="Say who may use an environment")
def share(name: Name, request: EnvironmentShareRequest, ctx: Ctx, who: Who) -> NamedEnvironmentView:
    """Their sessions get copies of their own: what they install changes nothing for its owner."""
    subjects = [EVERYBODY] if request.subjects == "all" else list(request.subjects)
    for subject in subjects:
        if subject != EVERYBODY and ctx.lab.people.get(subject) is None:
            raise NotFound(f'There is no user "{subject[:80]}".', remedy="`carrel lab --json` shows people their own subject.")
    return ctx.environments.share(who, name, subjects)


@router.post(
    "/environments/{name:path}/restore", summary="Go back to an earlier lock", response_class=Response, responses=_answers(200)
)
def restore(name: Name, request: EnvironmentRestoreRequest, ctx: Ctx, who: Who) -> Response:
    """No session may be using it. What is installed now stays in its history."""
    environments = ctx.environments
    return _stream(environments, environments.restoring(who, name, request.lock), 200)


@router.get("/environments/{name:path}", summary="Look at one environment")
def get_environment(name: Name, ctx: Ctx, who: Who) -> NamedEnvironmentView:
    """With the history of its locks."""
    return ctx.environments.get(who, name)


@router.delete("/environments/{name:path}", status_code=204, summary="Remove an environment", response_class=Response)
def remove(name: Name, ctx: Ctx, who: Who) -> Response:
    """With its history; not while a session uses it. A prefix that it refers to stays."""
    ctx.environments.remove(who, name)
    return Response(status_code=204)


def _stream(environments: Environments, build: Callable[[Work], NamedEnvironmentView], status: int) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(environments.lines(build), status, headers, _LINES)
