"""When cells of sessions had GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from carrel.core.domain.cells import CellPage
from carrel.lab.gateway.context import LARGEST, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API

router = APIRouter(prefix=API, tags=["sessions"], route_class=Endpoint)


@router.get("/cells", summary="When cells of sessions had GPUs: one's own, or everybody's (operators, administrators)")
def list_cells(
    ctx: Ctx,
    who: Who,
    owner: Literal["me", "all"] = "me",
    since: Annotated[float | None, Query(ge=0, le=LARGEST, description="Unix seconds.")] = None,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> CellPage:
    """Those that are over and that were asked for at `since` or later, in the order in which the lab heard of them."""
    return ctx.lab.cells.read(who, everybody=owner == "all", since=since, after=after, limit=limit)
