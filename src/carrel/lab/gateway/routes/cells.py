"""When cells of sessions had GPUs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from carrel.core.domain.cells import KeptCell
from carrel.lab.gateway.context import LARGEST, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, CellPageView, CellView

router = APIRouter(prefix=API, tags=["sessions"], route_class=Endpoint)


@router.get("/cells", summary="When cells of sessions had GPUs: one's own, or everybody's (operators, administrators)")
def list_cells(
    ctx: Ctx,
    who: Who,
    owner: Literal["me", "all"] = "me",
    since: Annotated[float | None, Query(ge=0, le=LARGEST, description="Unix seconds.")] = None,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> CellPageView:
    """Those that are over and that were asked for at `since` or later, in the order in which the lab heard of them."""
    page = ctx.lab.cells.read(who, everybody=owner == "all", since=since, after=after, limit=limit)
    return CellPageView(
        cells=[_view(kept) for kept in page.cells],
        missing=page.missing,
        next=page.cells[-1].id if len(page.cells) == limit else None,
    )


def _view(kept: KeptCell) -> CellView:
    cell = kept.cell
    return CellView(
        session=cell.job_id,
        attempt=cell.attempt,
        process=cell.process,
        owner=kept.owner,
        broker=cell.broker,
        number=cell.number,
        asked_at=cell.asked_at,
        granted_at=cell.granted_at,
        returned_at=cell.returned_at,
        seen_at=cell.seen_at,
        computed=cell.computed,
        gpus=cell.gpus,
        gpu_type=cell.gpu_type,
        gpu_memory=cell.gpu_memory,
        outcome=cell.outcome,
    )
