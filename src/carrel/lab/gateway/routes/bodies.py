"""Results of calls, and files for large arguments and results."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from carrel.core.domain.errors import Invalid, NotFound
from carrel.core.domain.units import format_size
from carrel.lab.gateway.context import LARGEST, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.routes.pools import ANSWER, LARGEST_BODY, CallId, PoolId, no_line
from carrel.wire.v1 import API, BodyFile, CallLog, CallNumbers, FetchedRequest

router = APIRouter(prefix=API, tags=["pools"], route_class=Endpoint)


@router.post("/pools/{pool_id}/files", status_code=201, summary="Have a file for a large body")
def new_file(
    pool_id: PoolId,
    request: Request,
    ctx: Ctx,
    who: Who,
    size: Annotated[int, Query(ge=1, le=LARGEST, description="Bytes that will be written.")],
) -> BodyFile:
    """For programs on the lab's machine: a ticket with which one of the sockets hands out a descriptor, once.

    The ticket is said as `file` in the header of a call's frame, or of an `ended` one, which has no body then.
    """
    no_line(request)
    ctx.pools.pool(who, pool_id)
    if size > LARGEST_BODY:
        raise Invalid(f"A body of {size} bytes; this takes up to {LARGEST_BODY}.")
    found = ctx.files.to_write(who.user.subject, size)
    if found is None:
        raise NotFound("The lab has no file for this now.", remedy="Send the body itself.")
    return BodyFile.model_validate(found)


@router.get("/calls/{call_id}/log", summary="Read what a call has printed")
def get_log(call_id: CallId, ctx: Ctx, who: Who) -> CallLog:
    """The ends of its standard output and standard error, also while it runs."""
    stdout, stderr = ctx.pools.log(who, call_id)
    return CallLog(
        stdout=stdout[8:].decode("utf-8", "replace"),
        stderr=stderr[8:].decode("utf-8", "replace"),
        stdout_size=int.from_bytes(stdout[:8], "big"),
        stderr_size=int.from_bytes(stderr[:8], "big"),
    )


@router.get("/calls/{call_id}/result", summary="Read a result", response_class=Response, responses=ANSWER)
def get_result(
    call_id: CallId,
    ctx: Ctx,
    who: Who,
    file: Annotated[
        bool, Query(description="Where it is large: JSON, a ticket as that of `POST /pools/{pool_id}/files`.")
    ] = False,
) -> Response:
    """What an ended call returned or raised, pickled: for programs of its owner, which trust their own workers."""
    call = ctx.pools.call(who, call_id)
    if not call.state.ended:
        raise Invalid(f"Call {call_id} is {call.state.value}.", remedy="Follow the results of its pool until it ends.")
    body, _, _ = ctx.pools.result(call_id)
    if body.size and body.data is None and body.path is None:
        raise NotFound(
            f"The result of call {call_id} ({format_size(body.size)}) is not kept any more: its program has had it.",
            remedy="Submit the call again. Results that several programs want: submit_cached().",
        )
    if file and (found := ctx.files.to_read(who.user.subject, body)) is not None:
        return Response(BodyFile.model_validate(found).model_dump_json(), media_type="application/json")
    size = {"Content-Length": str(body.size)}
    return StreamingResponse(ctx.bodies.pieces(body), media_type="application/octet-stream", headers=size)


@router.post("/pools/{pool_id}/calls/fetched", summary="Give up large results")
def fetched(pool_id: PoolId, body: FetchedRequest, request: Request, ctx: Ctx, who: Who) -> CallNumbers:
    """For programs that have had them: what lies in files goes now, and the calls stay. The answer has those of which it is gone.

    What a call that has not ended needs stays.
    """
    no_line(request)
    return CallNumbers(calls=sorted(ctx.pools.give_up_results(who, pool_id, body.calls)))
