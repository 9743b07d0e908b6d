"""The lab's disk: how much is whose, and what may go."""

from __future__ import annotations

from fastapi import APIRouter

from carrel.core.domain.retention import Collection, StorageReport
from carrel.lab.gateway.context import Ctx, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, CollectRequest, OutputsRemoved

router = APIRouter(prefix=API, route_class=Endpoint)


@router.get("/storage", tags=["lab"], summary="How much of the lab's disk is whose")
def get_storage(ctx: Ctx, who: Who) -> StorageReport:
    """One's own, and what each user may have; administrators see everybody's."""
    return ctx.lab.retention.report(who)


@router.post("/storage/collect", tags=["lab"], summary="Remove what the lab's rules do not keep (administrators)")
def collect(request: CollectRequest, ctx: Ctx, who: Who) -> Collection:
    """Nothing goes that a record names, unless a rule says so. With `dry_run` nothing goes at all."""
    found = ctx.lab.retention.collect(who, request.kinds, dry_run=request.dry_run)
    return Collection(dry_run=request.dry_run, collected=tuple(found))


@router.delete("/jobs/{job_id}/outputs", tags=["jobs"], summary="Give up what a job stored")
def remove_outputs(job_id: JobId, ctx: Ctx, who: Who) -> OutputsRemoved:
    """Names, sizes and digests stay in the record. 409 while the job goes on."""
    count, size = ctx.lab.retention.remove_outputs(who, ctx.lab.job(who, job_id))
    return OutputsRemoved(count=count, size=size)
