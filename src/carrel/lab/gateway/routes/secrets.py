"""What users keep for their jobs: set and listed by people, read by the job that was promised it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Response

from carrel.core.domain.errors import NotFound
from carrel.lab.gateway.context import NO_ZERO, Ctx, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.views import moment
from carrel.wire.v1 import API, JobSecrets, SecretChange, SecretList, SecretRequest, SecretView

Name = Annotated[str, Path(max_length=200, pattern=NO_ZERO)]

router = APIRouter(prefix=API, tags=["secrets"], route_class=Endpoint)


@router.get("/secrets", summary="Names of one's own secrets")
def list_secrets(ctx: Ctx, who: Who) -> SecretList:
    """Without their values, which nobody is shown again."""
    found = ctx.lab.secrets.list(who)
    views = [
        SecretView(name=one.name, set_at=datetime.fromtimestamp(one.set_at, UTC), used_at=moment(one.used_at)) for one in found
    ]
    return SecretList(secrets=views)


@router.put("/secrets/{name}", summary="Set a secret of one's own")
def set_secret(name: Name, request: SecretRequest, ctx: Ctx, who: Who) -> SecretChange:
    """Jobs that name it find it in an environment variable; those that run already keep what they were given."""
    return SecretChange(name=name, created=ctx.lab.secrets.put(who, name, request.value.get_secret_value()))


@router.delete("/secrets/{name}", status_code=204, summary="Forget a secret of one's own", response_class=Response)
def remove_secret(name: Name, ctx: Ctx, who: Who) -> Response:
    """Jobs that wait and name it will fail when they start, and say why."""
    ctx.lab.secrets.remove(who, name)
    return Response(status_code=204)


@router.get("/jobs/{job_id}/secrets", tags=["jobs"], summary="What a job was promised, for the job itself")
def job_secrets(job_id: JobId, ctx: Ctx, who: Who) -> JobSecrets:
    """Only the token of the running job itself opens this, its owner's does not."""
    if who.job_id is not None and who.job_id != job_id:
        raise NotFound(f"There is no job {job_id}.")
    return JobSecrets(secrets=dict(ctx.lab.secrets.of_job(who, job_id, ctx.lab.task(who, job_id))))
