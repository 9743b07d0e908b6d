"""Submissions on their way to the lab."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from carrel.client.submitit.parameters import Wanted
from carrel.client.submitit.project import write_project
from carrel.core.domain.errors import Invalid
from carrel.wire import v1

if TYPE_CHECKING:
    from carrel.client import Client


def send(
    client: Client,
    pickled: Sequence[bytes],
    wanted: Wanted,
    *,
    cluster: str,
    requirements: Sequence[str] | None,
    image: str | None,
    modules: Mapping[str, Path],
    requeue: int,
) -> dict[str, int]:
    """Submit, several as an array; return names of jobs with their numbers, in their order. Raises `CarrelError`."""
    with tempfile.TemporaryDirectory(prefix="carrel-submitit-") as directory:
        write_project(
            Path(directory),
            submissions=pickled,
            requirements=requirements,
            modules=modules,
            cluster=cluster,
            setup=wanted.setup,
            teardown=wanted.teardown,
            one_stream=wanted.one_stream,
        )
        snapshot = client.upload(Path(directory))
    first = client.submit(_request(snapshot, wanted, count=len(pickled), image=image, requeue=requeue))
    if first.array_job_id is None:
        return {str(first.id): first.id}
    return {f"{first.array_job_id}_{job.array_task_id}": job.id for job in client.array(first.array_job_id).jobs}


def _request(snapshot: str, wanted: Wanted, *, count: int, image: str | None, requeue: int) -> v1.TaskRequest:
    options: dict[str, Any] = {"name": "submitit", **wanted.options}
    if count > 1:
        options["array"] = f"0-{count - 1}" + (f"%{wanted.parallel}" if wanted.parallel else "")
    if requeue:
        options |= {"requeue": requeue, "warning": f"{wanted.warning}s"}
    if image is not None:
        options["image"] = image
    try:
        return v1.TaskRequest(
            snapshot=snapshot,
            resources=v1.ResourceRequest(**wanted.resources),
            slurm=v1.SlurmRequest(**wanted.slurm) if wanted.slurm else None,
            **options,
        )
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise Invalid(f"The lab does not understand a parameter: {told}.", remedy="docs/functions.md lists them.") from None
