"""Values of secrets: set by people, read by the job that was promised them. The rest is in `nouns`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path

from carrel.core.domain.errors import NotFound
from carrel.core.domain.nouns import SECRETS
from carrel.core.domain.secret import Secret
from carrel.core.policy.access import Action, allowed
from carrel.lab.gateway.context import NO_ZERO, Ctx, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, JobSecrets, SecretChange, asked_of

if TYPE_CHECKING:
    SecretRequest = Secret
else:
    SecretRequest = asked_of(SECRETS)
Name = Annotated[str, Path(max_length=200, pattern=NO_ZERO)]

router = APIRouter(prefix=API, tags=["secrets"], route_class=Endpoint)


@router.put("/secrets/{name}", summary="Set a secret of one's own")
def set_secret(name: Name, request: SecretRequest, ctx: Ctx, who: Who) -> SecretChange:
    """Jobs that name it find it in an environment variable; those that run already keep what they were given."""
    allowed(who, Action.CHANGE_SECRETS).check()
    return SecretChange(name=name, created=ctx.lab.secrets.put(who, Secret(name=name, value=request.value))[0])


@router.get("/jobs/{job_id}/secrets", tags=["jobs"], summary="What a job was promised, for the job itself")
def job_secrets(job_id: JobId, ctx: Ctx, who: Who) -> JobSecrets:
    """Only the token of the running job itself opens this, its owner's does not."""
    if who.job_id is not None and who.job_id != job_id:
        raise NotFound(f"There is no job {job_id}.")
    return JobSecrets(secrets=dict(ctx.lab.secrets.of_job(who, job_id, ctx.lab.task(who, job_id))))
