"""What is larger than a message: code snapshots, logs, outputs. Streamed both ways, never held in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, BinaryIO

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from starlette.convertors import PathConvertor, register_url_convertor

import carrel.lab.gateway.routes.files  # noqa: F401 - what `{path:file}` means
from carrel.core.domain.errors import NotFound, StorageFull
from carrel.core.domain.units import MIB
from carrel.core.domain.user import Caller
from carrel.core.snapshots.extraction import write_all
from carrel.core.spool.disk import full_at, is_full
from carrel.lab.gateway.boundary import DATA_POLICY
from carrel.lab.gateway.context import LARGEST, Ctx, Gateway, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.views import output_view
from carrel.wire.v1 import API, OutputList, SnapshotView


class FilePathConvertor(PathConvertor):
    """Starlette's `path`, but for the characters that it leaves out: a dot of an expression is no newline."""

    regex = r"[\s\S]*"


#: What stands behind the colon in a route: "/outputs/{path:file}".
register_url_convertor("file", FilePathConvertor())


router = APIRouter(prefix=API, route_class=Endpoint)

Digest = Annotated[str, PathParameter(pattern="^sha256:[0-9a-f]{64}$", description='"sha256:" and 64 hexadecimal digits.')]
#: Written to disk in pieces of this size, each by a thread.
_PIECE = MIB
#: An output is a stranger's file: a browser only ever saves it, with any content type.
_DOWNLOAD = {"Content-Security-Policy": DATA_POLICY}


@router.put(
    "/snapshots/{digest}",
    status_code=201,
    tags=["code"],
    summary="Upload code",
    responses={200: {"model": SnapshotView, "description": "It was there already"}},
    openapi_extra={
        "requestBody": {"required": True, "content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
async def put_snapshot(digest: Digest, request: Request, ctx: Ctx, who: Who, response: Response) -> SnapshotView:
    """The body is the snapshot's archive; its content must have the digest in the address."""
    known = await to_thread.run_sync(ctx.lab.has_snapshot, who, digest)
    file = await to_thread.run_sync(_new_file, ctx.settings.uploads)
    try:
        await _receive(request, file)
        if not known:
            await to_thread.run_sync(_keep, ctx, who, digest, file)
    except OSError as error:
        if not is_full(error):
            raise
        said = full_at(ctx.settings.uploads, error)
        raise StorageFull(f"The code was not stored. {said}", remedy="Ask an administrator to free space.") from error
    finally:
        file.close()
    response.status_code = 200 if known else 201
    return SnapshotView(digest=digest)


@router.head("/snapshots/{digest}", tags=["code"], summary="Is this code there?")
def head_snapshot(digest: Digest, ctx: Ctx, who: Who) -> Response:
    """200 when the caller has uploaded it, else 404: what others uploaded is not told."""
    if not ctx.lab.has_snapshot(who, digest):
        raise NotFound(f"There is no code {digest} of yours.", remedy="Upload the snapshot first.")
    return Response()


@router.get(
    "/snapshots/{digest}",
    tags=["code"],
    summary="Download code",
    response_class=FileResponse,
    responses={
        200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}, "description": "Its archive."}
    },
)
def get_snapshot(digest: Digest, ctx: Ctx, who: Who) -> FileResponse:
    """The archive, for those who have uploaded the code; what others uploaded is not told."""
    if not ctx.lab.has_snapshot(who, digest):
        raise NotFound(f"There is no code {digest} of yours.", remedy="It is shown to who has uploaded it.")
    path = ctx.lab.files.code.path(digest)
    return FileResponse(path, filename=path.name, media_type="application/x-tar", headers=_DOWNLOAD)


@router.get(
    "/jobs/{job_id}/log",
    tags=["jobs"],
    summary="Read a job's log",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Bytes of the log as they are."}},
)
def get_log(
    job_id: JobId,
    ctx: Ctx,
    who: Who,
    attempt: Annotated[int | None, Query(ge=0, le=LARGEST, description="Default: the last. 0: before its place.")] = None,
    offset: Annotated[int, Query(ge=-LARGEST, le=LARGEST, description="In bytes; a negative one counts from the end.")] = 0,
    limit: Annotated[int, Query(ge=0, le=16 * MIB)] = MIB,
) -> Response:
    """A piece of the log. ``X-Carrel-Offset`` says where it begins, ``X-Carrel-Size`` how long the log is now."""
    chunk = ctx.lab.produced.log_range(who, job_id, attempt=attempt, offset=offset, limit=limit)
    place = {"X-Carrel-Attempt": str(chunk.attempt), "X-Carrel-Offset": str(chunk.offset), "X-Carrel-Size": str(chunk.size)}
    return Response(chunk.data, headers=place, media_type="text/plain; charset=utf-8")


@router.get("/jobs/{job_id}/outputs", tags=["jobs"], summary="List a job's outputs")
def list_outputs(job_id: JobId, ctx: Ctx, who: Who) -> OutputList:
    """Stored outputs of the last attempt."""
    return OutputList(outputs=[output_view(file) for file in ctx.lab.produced.outputs(who, job_id)])


@router.post("/jobs/{job_id}/outputs", tags=["jobs"], summary="Store outputs that could not be stored at the job's end")
def collect_outputs(job_id: JobId, ctx: Ctx, who: Who) -> OutputList:
    """Stores what the last attempt left in its working directory; the answer, which may take a while, has all that is stored."""
    found = ctx.lab.produced.collect_outputs(who, job_id)
    return OutputList(outputs=[output_view(file) for file in ctx.lab.produced.outputs(who, job_id)], notes=list(found.notes))


@router.get(
    "/jobs/{job_id}/outputs/{path:file}",
    tags=["jobs"],
    summary="Download an output",
    response_class=FileResponse,
    responses={
        200: {
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            "description": "The file.",
        }
    },
)
def get_output(job_id: JobId, path: str, ctx: Ctx, who: Who) -> FileResponse:
    """The file, byte for byte; ``Range`` is understood."""
    return download(ctx, who, job_id, path)


def download(ctx: Gateway, who: Caller, job_id: int, path: str) -> FileResponse:
    """An output as a download. Raises `NotFound` when it is not among the job's outputs or its content is gone."""
    blob = ctx.lab.produced.blob_path(who, job_id, path)
    if not blob.is_file():
        raise NotFound(f'The content of "{path}" is not stored any more.', remedy="Run the job again.")
    return FileResponse(blob, filename=path.rpartition("/")[2], media_type="application/octet-stream", headers=_DOWNLOAD)


def _new_file(directory: Path) -> BinaryIO:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Without a name: nothing is left behind, however this ends. Without a buffer: what a full disk did not take, closing the file
    # would try to write again.
    return tempfile.TemporaryFile(dir=directory, buffering=0)


async def _receive(request: Request, file: BinaryIO) -> None:
    waiting: list[bytes] = []
    size = 0
    async for part in request.stream():
        waiting.append(part)
        size += len(part)
        if size >= _PIECE:
            await to_thread.run_sync(write_all, file, b"".join(waiting))
            waiting, size = [], 0
    await to_thread.run_sync(write_all, file, b"".join(waiting))


def _keep(ctx: Gateway, who: Caller, digest: str, file: BinaryIO) -> None:
    file.seek(0, os.SEEK_SET)
    ctx.lab.add_snapshot(who, digest, file)
