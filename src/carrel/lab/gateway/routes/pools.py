"""Pools of workers: calls go in and results come out, as frames (`carrel.wire.frames`)."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from carrel.core.control.borrowing import NOTHING, WorkerGpus, gpus_of_workers
from carrel.core.control.pool_board import Begun, Ended, Listener
from carrel.core.control.pools import Pools
from carrel.core.domain.call import INLINE, Call, CallState, NewCall, PoolWorker, WorkerPool
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.nouns import POOLS
from carrel.core.domain.units import GIB
from carrel.core.domain.user import Caller
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.call_bodies import Frame
from carrel.lab.gateway.context import LARGEST, Ctx, Gateway, Granted, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.gate import Grant
from carrel.lab.gateway.views import view_of
from carrel.wire import frames
from carrel.wire.v1 import (
    API,
    BodyFile,
    CallNumbers,
    CallPage,
    CallView,
    Forgotten,
    WorkerPoolRequest,
    list_of,
    show,
)

router = APIRouter(prefix=API, tags=["pools"], route_class=Endpoint)

PoolId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the pool.")]
CallId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the call.")]
Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="Digest of the pickled function.")]
#: Largest body of one call, and of what a worker prints at once.
LARGEST_BODY = 64 * GIB
FRAMES = "application/vnd.carrel.frames"
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {FRAMES: {"schema": {"type": "string", "format": "binary"}}}, "description": "Frames."}
}
BODY: dict[str, Any] = {
    "requestBody": {"content": {FRAMES: {"schema": {"type": "string", "format": "binary"}}}, "required": True}
}
_MOST_CALLS = 10_000
#: Seconds.
_LONGEST = 366 * 86400
_CACHE = re.compile(r"sha256:[0-9a-f]{64}")
#: Seconds between two looks whether somebody who follows is still signed in.
_RECHECK = 1.0
#: Seconds until it is told that a call has begun: of a short one it is told together with its end.
_MOMENT = 0.02


@router.post("/pools", status_code=201, summary="Open a pool of workers")
def open_pool(request: WorkerPoolRequest, ctx: Ctx, who: Who, response: Response) -> WorkerPool:
    """Workers are started when there are calls for them, and end when they have had nothing to do for a while."""
    if request.min_workers > request.max_workers:
        raise Invalid(f"min_workers is {request.min_workers} and max_workers {request.max_workers}.", remedy="Ask for fewer.")
    task = request.task
    if who.account is not None and task.account is None:
        task = task.model_copy(update={"account": who.account})
    asked = WorkerPool(
        name=request.name,
        min_workers=request.min_workers,
        max_workers=request.max_workers,
        idle_time=request.idle_time,
        reserve=request.reserve,
        task=task.model_dump(mode="json", exclude_none=True),
    )
    pool = ctx.pools.open(who, asked)
    response.headers["Location"] = f"{API}/pools/{pool.id}"
    return _shown(ctx.pools, pool, _borrowed(ctx, who, pool))


@router.get("/pools", summary="List one's own pools, newest first", response_model=list_of(POOLS))
def list_pools(ctx: Ctx, who: Who, closed: Annotated[bool, Query(description="Those that are closed, too.")] = False) -> Any:
    """Pools with their calls by state and their workers."""
    found = ctx.pools.pools(who, closed=closed)
    borrowed = _borrowed(ctx, who, *found)
    return list_of(POOLS)(pools=[show(_shown(ctx.pools, pool, borrowed)) for pool in found])


@router.get("/pools/{pool_id}", summary="Look at a pool")
def get_pool(pool_id: PoolId, ctx: Ctx, who: Who) -> WorkerPool:
    """The pool with its calls by state and its workers."""
    pool = ctx.pools.pool(who, pool_id)
    return _shown(ctx.pools, pool, _borrowed(ctx, who, pool))


@router.post("/pools/{pool_id}/close", summary="Take no more calls")
def close_pool(
    pool_id: PoolId, ctx: Ctx, who: Who, cancel: Annotated[bool, Query(description="Calls that wait do not begin.")] = False
) -> WorkerPool:
    """What runs is finished; workers end when nothing is left to do. Closing again changes nothing."""
    pool = ctx.pools.close(who, pool_id, cancel=cancel)
    return _shown(ctx.pools, pool, _borrowed(ctx, who, pool))


@router.delete("/pools/{pool_id}", status_code=204, summary="Remove a pool with its results")
def remove_pool(pool_id: PoolId, ctx: Ctx, who: Who) -> Response:
    """A pool that is over is forgotten with its calls and what they returned; 409 while there is something left to do."""
    ctx.pools.remove(who, pool_id)
    return Response(status_code=204)


@router.put("/pools/{pool_id}/functions/{digest}", status_code=204, summary="Send a function", openapi_extra=BODY)
async def put_function(pool_id: PoolId, digest: Digest, request: Request, ctx: Ctx, who: Who) -> Response:
    """One frame with the pickled function, before calls of it; or a value that calls name by its digest. `file` is a ticket."""
    no_line(request)
    await to_thread.run_sync(ctx.pools.pool, who, pool_id)
    async for frame in ctx.bodies.receive(request, most=LARGEST_BODY):
        frame = await ctx.files.with_file(frame, who.user.subject)
        try:
            await to_thread.run_sync(ctx.pools.add_function, who, pool_id, digest, frame.body)
        except CarrelError:
            ctx.bodies.discard(frame.body)
            raise
    return Response(status_code=204)


@router.get("/pools/{pool_id}/functions/{digest}", summary="Read a function", response_class=Response, responses=ANSWER)
def get_function(
    pool_id: PoolId,
    digest: Digest,
    ctx: Ctx,
    who: Who,
    file: Annotated[bool, Query(description="Where it is large: JSON, a ticket for a file.")] = False,
) -> Response:
    """The pickled function, for workers."""
    body = ctx.pools.function(who, pool_id, digest)
    if file and (found := ctx.files.to_read(who.user.subject, body)) is not None:
        return Response(BodyFile.model_validate(found).model_dump_json(), media_type="application/json")
    size = {"Content-Length": str(body.size)}
    return StreamingResponse(ctx.bodies.pieces(body), media_type="application/octet-stream", headers=size)


@router.post("/pools/{pool_id}/calls", status_code=201, summary="Submit calls", openapi_extra=BODY, response_model=CallNumbers)
async def submit_calls(pool_id: PoolId, request: Request, ctx: Ctx, who: Who) -> Response:
    """A frame for each call: `key`, `label`, `function` (a digest) and `retries` in its header, the pickled arguments as body.

    `dependencies` are calls whose results it needs, `cache` is a digest under which its result is kept for equal calls, `file` is
    the ticket of a file in which the arguments are, `time_limit` is seconds from its beginning on after which it is stopped.

    A key that the pool knows is the call that has it, so a request that was cut off can be sent again.
    """
    await known(ctx, who, pool_id)
    new: list[NewCall] = []
    try:
        async for frame in ctx.bodies.receive(request, most=LARGEST_BODY):
            new.append(_new_call(await ctx.files.with_file(frame, who.user.subject)))
            if len(new) > _MOST_CALLS:
                raise Invalid(f"More than {_MOST_CALLS} calls at once.", remedy="Send them in several requests.")
        numbers = await to_thread.run_sync(ctx.pools.submit, who, pool_id, new)
    except BaseException:
        for call in new:
            ctx.bodies.discard(call.body)
        raise
    return Response(CallNumbers(calls=list(numbers)).model_dump_json(), 201, media_type="application/json")


@router.get("/pools/{pool_id}/calls", summary="List calls, newest first")
def list_calls(
    pool_id: PoolId,
    ctx: Ctx,
    who: Who,
    before: Annotated[int | None, Query(ge=1, le=LARGEST, description="Only smaller numbers: `next` of a page.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    state: Annotated[CallState | None, Query(description="Only those in this state.")] = None,
) -> CallPage:
    """One page of the calls of a pool."""
    found = ctx.pools.calls(who, pool_id, before=before, limit=limit + 1, state=state)
    borrowed = _borrowed(ctx, who, ctx.pools.pool(who, pool_id))
    shown = [call_view(ctx.pools, call, borrowed) for call in found[:limit]]
    return CallPage(calls=shown, next=shown[-1].id if len(found) > limit else None)


@router.delete("/cached-results", summary="Forget results that are kept for equal calls")
def forget_results(
    ctx: Ctx,
    who: Who,
    function: Annotated[str | None, Query(max_length=255, description="Only those of the function of that name.")] = None,
) -> Forgotten:
    """One's own; calls that have ended keep theirs."""
    return Forgotten(results=ctx.pools.forget_cached(who, function))


@router.get("/calls/{call_id}", summary="Look at a call")
def get_call(call_id: CallId, ctx: Ctx, who: Who) -> CallView:
    """One call, without its arguments and its result."""
    call = ctx.pools.call(who, call_id)
    return call_view(ctx.pools, call, _borrowed(ctx, who, ctx.pools.pool(who, call.pool_id)))


@router.get("/pools/{pool_id}/results", summary="Follow the calls of a pool", response_class=Response, responses=ANSWER)
async def follow(
    pool_id: PoolId,
    ctx: Ctx,
    grant: Granted,
    after: Annotated[int, Query(ge=0, le=LARGEST, description="`number` of the last ending that is known.")] = 0,
    stream: Annotated[bool, Query(description="False: only what has ended by now, up to 100 calls.")] = True,
) -> Response:
    """A stream of frames without an end: `begun` (call, job; `waits`: for its GPU), `output` (call, stream, offset), `ended`.

    The body of an ending is what the call printed last, and its result where that is small (`inline`).
    """
    await to_thread.run_sync(ctx.pools.pool, grant.caller, pool_id)
    if not stream:
        ctx.pools.asked_for(pool_id)
        found = await to_thread.run_sync(lambda: ctx.pools.ended(pool_id, after=after))
        return Response(b"".join(_ended(one) for one in found), media_type=FRAMES)
    return StreamingResponse(_results(ctx, grant, pool_id, after), media_type=FRAMES, headers={"Cache-Control": "no-store"})


async def known(ctx: Gateway, who: Caller, pool_id: int) -> None:
    """Raise `NotFound` for a pool that is not there, or not the caller's, before more is read of the request."""
    if ctx.pools.at_hand(pool_id):
        ctx.pools.pool(who, pool_id)
    else:  # the database may take a while
        await to_thread.run_sync(ctx.pools.pool, who, pool_id)


def no_line(request: Request) -> None:
    """Write nothing into the audit log: what is said again and again. A pool and what is submitted to it have their lines."""
    tell_audit(request.scope, line=False)


# ---- what comes in


def plain_text(value: object) -> str:
    """Text that every database and every encoding takes: JSON may have halves of characters (a file name that is no UTF-8)."""
    return str(value).replace("\0", "").encode("utf-8", "backslashreplace").decode()


def _new_call(frame: Frame) -> NewCall:
    header = frame.header
    key, label, function, retries = (header.get(name) for name in ("key", "label", "function", "retries"))
    if not (isinstance(key, str) and 0 < len(key) <= 64 and key.isascii() and key.isprintable()):
        raise Invalid("A call's key is 1 to 64 printable characters.")
    if not (
        isinstance(label, str) and "\0" not in label and isinstance(function, str) and function.isascii() and len(function) <= 80
    ):
        raise Invalid("A call has a label and the digest of a function.")
    if type(retries) is not int or not 0 <= retries <= 100:
        raise Invalid(f"retries is {str(retries)[:40]}.", remedy="Ask for 0 to 100.")
    dependencies, cache = header.get("dependencies", []), header.get("cache")
    if not (isinstance(dependencies, list) and all(type(one) is int and 0 < one <= LARGEST for one in dependencies)):
        raise Invalid("dependencies of a call are numbers of calls.")
    if not (cache is None or (isinstance(cache, str) and _CACHE.fullmatch(cache))):
        raise Invalid("cache of a call is a digest: sha256: and 64 hexadecimal digits.")
    limit = header.get("time_limit")
    if not (limit is None or (type(limit) in (int, float) and 0 < limit <= _LONGEST)):
        raise Invalid(f"time_limit of a call is {str(limit)[:40]}.", remedy="Say more than 0 seconds, and at most a year's.")
    return NewCall(
        key=key,
        label=plain_text(label)[:255],
        function=function,
        retries=retries,
        dependencies=tuple(dict.fromkeys(dependencies)),
        cache=cache,
        time_limit=limit,
        body=frame.body,
    )


# ---- what goes out


async def _results(ctx: Gateway, grant: Grant, pool_id: int, after: int) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    rung = asyncio.Event()
    pools = ctx.pools
    checked = loop.time()

    def bell() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(rung.set)

    def read(listener: Listener) -> bytes:
        nonlocal after, checked
        if loop.time() >= checked + _RECHECK:
            grant.recheck()  # nothing goes out after the token was revoked
            checked = loop.time()
        begun, listener.begun = listener.begun, []
        parts = [frames.encode({"type": "begun", "call": one.call_id, "job": one.job_id, "waits": one.waits}) for one in begun]
        while listener.output:
            piece = listener.output.popleft()
            header = {"type": "output", "call": piece.call_id, "stream": piece.stream, "offset": piece.offset}
            parts.append(frames.encode(header, piece.data))
        ended = pools.ended(pool_id, after=after)
        for one in ended:
            parts.append(_ended(one))
            after = one.number
        if len(ended) >= 100:
            rung.set()
        return b"".join(parts)

    def soon(begun: Begun) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(loop.call_later, _MOMENT, untold, begun)

    def untold(begun: Begun) -> None:
        if begun in listener.begun:
            rung.set()

    with pools.follow(pool_id, bell, soon) as listener:
        yield frames.encode({"type": "alive"})
        while not ctx.streams.doorbell.closing:
            rung.clear()
            try:
                data = await to_thread.run_sync(read, listener)
            except CarrelError:
                return
            if data:
                yield data
                continue
            if pools.is_over(pool_id):
                return
            try:
                await asyncio.wait_for(rung.wait(), ctx.settings.heartbeat)
            except TimeoutError:
                yield frames.encode({"type": "alive"})


def _ended(one: Ended) -> bytes:
    ending = one.ending
    inline = ending.body.size <= INLINE
    header = {
        "type": "ended",
        "call": ending.call_id,
        "number": one.number,
        "state": ending.state.value,
        "error": ending.error,
        "message": ending.message,
        "job": one.job_id,
        "stdout": len(ending.stdout),
        "stderr": len(ending.stderr),
        "inline": inline,
        "cached": ending.cached_from is not None,
    }
    return frames.encode(header, ending.stdout + ending.stderr + ((ending.body.data or b"") if inline else b""))


def _borrowed(ctx: Gateway, who: Caller, *pools: WorkerPool) -> Mapping[int, WorkerGpus]:
    """What workers have of GPUs that are lent, by their jobs."""
    if ctx.sessions is None or all(pool.reserve for pool in pools):
        return {}
    return gpus_of_workers([ctx.sessions.gpus(who), *(one.status for one in ctx.sessions.nodes(who) if one.current)])


def _shown(pools: Pools, pool: WorkerPool, borrowed: Mapping[int, WorkerGpus]) -> WorkerPool:
    asked = pool.task.get("resources") or {}
    return replace(
        pool,
        borrows=0 if pool.reserve else asked.get("gpus") or asked.get("gpus_per_node") or 0,
        calls=pools.counts(pool.id),
        workers=_workers(pools, pool.id, borrowed),
        trouble=pools.trouble(pool.id),
        unfollowed_since=pools.unfollowed_since(pool.id),
    )


def _workers(pools: Pools, pool_id: int, borrowed: Mapping[int, WorkerGpus]) -> tuple[PoolWorker, ...]:
    return tuple(
        PoolWorker(
            job_id=job.id,
            state=job.state.value,
            message=job.reason.message
            if job.reason is not None and not job.state.holds_resources
            else borrowed.get(job.id, NOTHING).waits,
            borrowed=tuple(borrowed.get(job.id, NOTHING).devices),
        )
        for job in pools.workers(pool_id)
    )


def call_view(pools: Pools, call: Call, borrowed: Mapping[int, WorkerGpus] = MappingProxyType({})) -> CallView:
    """A call as the wire has it; `borrowed`: what workers have of GPUs that are lent."""
    waits = borrowed.get(call.job_id or 0, NOTHING).waits if call.state is CallState.RUNNING else ""
    return view_of(
        CallView,
        call,
        message=waits or call.message,
        number=call.ended_number,
        waits_for=[] if call.state is not CallState.PENDING else pools.waits_for(call.id),
    )


def largest_body(path: str) -> int | None:
    """Largest request at an address of calls, or None for another one."""
    parts = path.removeprefix(f"{API}/pools/").split("/") if path.startswith(f"{API}/pools/") else []
    return LARGEST_BODY if len(parts) >= 2 and parts[1] in ("calls", "work", "functions") else None
