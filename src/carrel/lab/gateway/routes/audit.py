"""Who did what, for operators and administrators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from carrel.core.domain.errors import NotFound
from carrel.core.domain.user import Caller
from carrel.core.policy.access import Action, allowed
from carrel.lab.audit import AuditFilter, AuditLog
from carrel.lab.gateway.context import LARGEST, NO_ZERO, Ctx, Gateway, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, AuditPage

router = APIRouter(prefix=API, tags=["lab"], route_class=Endpoint)
_Text = Annotated[str | None, Query(max_length=500, pattern=NO_ZERO)]


@router.get("/audit", summary="Who did what, and what was refused (operators, administrators)")
def read_audit(
    ctx: Ctx,
    who: Who,
    user: _Text = None,
    action: _Text = None,
    result: Literal["allowed", "refused", "failed"] | None = None,
    resource: _Text = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    newest: bool = False,
) -> AuditPage:
    """Lines as they were written, oldest first; with `newest` the last ones. `next` leads to the lines after these."""
    log = _log(ctx, who)
    wanted = AuditFilter(
        who=user,
        action=action,
        result=result,
        resource=resource,
        since=_seconds(since),
        until=_seconds(until),
        after=after,
    )
    found = log.read(wanted, limit=limit, newest=newest)
    return AuditPage(lines=found, next=int(found[-1]["seq"]) if len(found) == limit and not newest else None)


def _seconds(at: datetime | None) -> float | None:
    if at is None:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _log(ctx: Gateway, who: Caller) -> AuditLog:
    allowed(who, Action.READ_AUDIT).check()
    if ctx.audit is None:
        raise NotFound("This lab has no audit log.")
    return ctx.audit
