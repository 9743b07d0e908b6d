"""Arrays: the jobs that were submitted together, and the end of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Query

from carrel.core.domain.array import LARGEST_INDEX
from carrel.core.domain.job import Job
from carrel.lab.gateway.context import LARGEST, Base, Ctx, Gateway, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, ArrayView

router = APIRouter(prefix=f"{API}/arrays", tags=["jobs"], route_class=Endpoint)

ArrayId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the array: that of its first job.")]


@router.get("/{array_id}", summary="Look at the jobs of an array")
def get_array(
    array_id: ArrayId,
    ctx: Ctx,
    who: Who,
    base: Base,
    element: Annotated[int | None, Query(ge=0, le=LARGEST_INDEX, description="Only the one with this index.")] = None,
) -> ArrayView:
    """All its jobs by index, or one of them."""
    return _view(ctx, array_id, ctx.lab.array(who, array_id, element), base)


@router.post("/{array_id}/cancel", status_code=202, summary="Ask for the end of all jobs of an array")
def cancel_array(array_id: ArrayId, ctx: Ctx, who: Who, base: Base) -> ArrayView:
    """As for each of its jobs; those that have ended stay as they are."""
    return _view(ctx, array_id, ctx.lab.cancel_array(who, array_id), base)


def _view(ctx: Gateway, array_id: int, jobs: Sequence[Job], base: str) -> ArrayView:
    asked = next((job.element.array for job in jobs if job.element is not None), "")
    return ArrayView(id=array_id, array=asked, jobs=[ctx.show(job, base) for job in jobs])
