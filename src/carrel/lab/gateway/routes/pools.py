"""Pools of workers: calls go in and results come out, as frames (`carrel.wire.frames`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from carrel.core.control.pool_board import Ended, Listener, Output
from carrel.core.control.pools import Given, Pools
from carrel.core.domain.call import INLINE, Call, CallState, Ending, NewCall, WorkerPool, WorkerPoolSpec
from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.units import GIB
from carrel.core.domain.user import Caller
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.call_bodies import CallBodies, Frame
from carrel.lab.gateway.context import LARGEST, Ctx, Gateway, Granted, Who
from carrel.lab.gateway.gate import Grant
from carrel.lab.gateway.views import moment
from carrel.wire import frames
from carrel.wire.v1 import (
    API,
    CallNumbers,
    CallPage,
    CallView,
    WorkerPoolList,
    WorkerPoolRequest,
    WorkerPoolView,
    WorkerView,
)

router = APIRouter(prefix=API, tags=["pools"])

PoolId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the pool.")]
CallId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of the call.")]
Digest = Annotated[str, Path(pattern=r"^sha256:[0-9a-f]{64}$", description="Digest of the pickled function.")]
#: Largest body of one call, and of what a worker prints at once.
LARGEST_BODY = 64 * GIB
_LARGEST_OUTPUT = 1024 * 1024
_FRAMES = "application/vnd.carrel.frames"
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {_FRAMES: {"schema": {"type": "string", "format": "binary"}}}, "description": "Frames."}
}
_BODY: dict[str, Any] = {
    "requestBody": {"content": {_FRAMES: {"schema": {"type": "string", "format": "binary"}}}, "required": True}
}
_MOST_CALLS = 10_000
#: Seconds between two looks whether somebody who follows is still signed in.
_RECHECK = 1.0
_LONGEST_MESSAGE = 10_000


@router.post("/pools", status_code=201, summary="Open a pool of workers")
def open_pool(request: WorkerPoolRequest, ctx: Ctx, who: Who, response: Response) -> WorkerPoolView:
    """Workers are started when there are calls for them, and end when they have had nothing to do for a while."""
    if request.min_workers > request.max_workers:
        raise Invalid(f"min_workers is {request.min_workers} and max_workers {request.max_workers}.", remedy="Ask for fewer.")
    task = request.task
    if who.account is not None and task.account is None:
        task = task.model_copy(update={"account": who.account})
    spec = WorkerPoolSpec(
        name=request.name,
        min_workers=request.min_workers,
        max_workers=request.max_workers,
        idle_time=request.idle_time,
        task=task.model_dump(mode="json", exclude_none=True),
    )
    pool = ctx.pools.open(who, spec)
    response.headers["Location"] = f"{API}/pools/{pool.id}"
    return _pool_view(ctx.pools, pool)


@router.get("/pools", summary="List one's own pools, newest first")
def list_pools(
    ctx: Ctx, who: Who, closed: Annotated[bool, Query(description="Those that are closed, too.")] = False
) -> WorkerPoolList:
    """Pools with their calls by state and their workers."""
    return WorkerPoolList(pools=[_pool_view(ctx.pools, pool) for pool in ctx.pools.pools(who, closed=closed)])


@router.get("/pools/{pool_id}", summary="Look at a pool")
def get_pool(pool_id: PoolId, ctx: Ctx, who: Who) -> WorkerPoolView:
    """The pool with its calls by state and its workers."""
    return _pool_view(ctx.pools, ctx.pools.pool(who, pool_id))


@router.post("/pools/{pool_id}/close", summary="Take no more calls")
def close_pool(
    pool_id: PoolId, ctx: Ctx, who: Who, cancel: Annotated[bool, Query(description="Calls that wait do not begin.")] = False
) -> WorkerPoolView:
    """What runs is finished; workers end when nothing is left to do. Closing again changes nothing."""
    return _pool_view(ctx.pools, ctx.pools.close(who, pool_id, cancel=cancel))


@router.put("/pools/{pool_id}/functions/{digest}", status_code=204, summary="Send a function", openapi_extra=_BODY)
async def put_function(pool_id: PoolId, digest: Digest, request: Request, ctx: Ctx, who: Who) -> Response:
    """One frame with the pickled function, before calls of it."""
    _no_line(request)
    await to_thread.run_sync(ctx.pools.pool, who, pool_id)
    async for frame in ctx.bodies.receive(request, most=GIB):
        await to_thread.run_sync(ctx.pools.add_function, who, pool_id, digest, frame.body)
    return Response(status_code=204)


@router.get("/pools/{pool_id}/functions/{digest}", summary="Read a function", response_class=Response, responses=_ANSWER)
def get_function(pool_id: PoolId, digest: Digest, ctx: Ctx, who: Who) -> Response:
    """The pickled function, for workers."""
    body = ctx.pools.function(who, pool_id, digest)
    size = {"Content-Length": str(body.size)}
    return StreamingResponse(ctx.bodies.pieces(body), media_type="application/octet-stream", headers=size)


@router.post("/pools/{pool_id}/calls", status_code=201, summary="Submit calls", openapi_extra=_BODY)
async def submit_calls(pool_id: PoolId, request: Request, ctx: Ctx, who: Who) -> CallNumbers:
    """A frame for each call: `key`, `label`, `function` (a digest) and `retries` in its header, the pickled arguments as body.

    A key that the pool knows is the call that has it, so a request that was cut off can be sent again.
    """
    await to_thread.run_sync(ctx.pools.pool, who, pool_id)
    new: list[NewCall] = []
    try:
        async for frame in ctx.bodies.receive(request, most=LARGEST_BODY):
            new.append(_new_call(frame))
            if len(new) > _MOST_CALLS:
                raise Invalid(f"More than {_MOST_CALLS} calls at once.", remedy="Send them in several requests.")
        numbers = await to_thread.run_sync(ctx.pools.submit, who, pool_id, new)
    except BaseException:
        for call in new:
            ctx.bodies.discard(call.body)
        raise
    return CallNumbers(calls=list(numbers))


@router.get("/pools/{pool_id}/calls", summary="List calls, newest first")
def list_calls(
    pool_id: PoolId,
    ctx: Ctx,
    who: Who,
    before: Annotated[int | None, Query(ge=1, le=LARGEST, description="Only smaller numbers: `next` of a page.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> CallPage:
    """One page of the calls of a pool."""
    found = ctx.pools.calls(who, pool_id, before=before, limit=limit + 1)
    shown = [call_view(call) for call in found[:limit]]
    return CallPage(calls=shown, next=shown[-1].id if len(found) > limit else None)


@router.get("/calls/{call_id}", summary="Look at a call")
def get_call(call_id: CallId, ctx: Ctx, who: Who) -> CallView:
    """One call, without its arguments and its result."""
    return call_view(ctx.pools.call(who, call_id))


@router.post("/calls/{call_id}/cancel", summary="Keep a call from beginning")
def cancel_call(call_id: CallId, ctx: Ctx, who: Who) -> CallView:
    """One that has begun goes on."""
    return call_view(ctx.pools.cancel(who, call_id))


@router.get("/calls/{call_id}/result", summary="Read a result", response_class=Response, responses=_ANSWER)
def get_result(call_id: CallId, ctx: Ctx, who: Who) -> Response:
    """What an ended call returned or raised, pickled: for programs of its owner, which trust their own workers."""
    call = ctx.pools.call(who, call_id)
    if not call.state.ended:
        raise Invalid(f"Call {call_id} is {call.state.value}.", remedy="Follow the results of its pool until it ends.")
    body, _, _ = ctx.pools.result(call_id)
    size = {"Content-Length": str(body.size)}
    return StreamingResponse(ctx.bodies.pieces(body), media_type="application/octet-stream", headers=size)


@router.get("/pools/{pool_id}/results", summary="Follow the calls of a pool", response_class=Response, responses=_ANSWER)
async def follow(
    pool_id: PoolId,
    ctx: Ctx,
    grant: Granted,
    after: Annotated[int, Query(ge=0, le=LARGEST, description="`number` of the last ending that is known.")] = 0,
    stream: Annotated[bool, Query(description="False: only what has ended by now, up to 100 calls.")] = True,
) -> Response:
    """A stream of frames without an end: `begun` (call, job), `output` (call, stream, offset), `ended` (call, number, state, …).

    The body of an ending is what the call printed last, and its result where that is small (`inline`).
    """
    await to_thread.run_sync(ctx.pools.pool, grant.caller, pool_id)
    if not stream:
        found = await to_thread.run_sync(lambda: ctx.pools.ended(pool_id, after=after))
        return Response(b"".join(_ended(one) for one in found), media_type=_FRAMES)
    return StreamingResponse(_results(ctx, grant, pool_id, after), media_type=_FRAMES, headers={"Cache-Control": "no-store"})


@router.post(
    "/pools/{pool_id}/work", summary="Take the next call", response_class=Response, openapi_extra=_BODY, responses=_ANSWER
)
async def work(
    pool_id: PoolId,
    request: Request,
    ctx: Ctx,
    who: Who,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for it.")] = 30,
    take: Annotated[bool, Query(description="False: tell only; no call is wanted.")] = True,
) -> Response:
    """For workers: a frame `holding` (calls), frames `stdout`, `stderr` and `ended` (call, state, …) of what it has finished.

    The answer is one frame: `call` with its arguments, `none`, or `retire`: the worker is not needed any more.
    """
    _no_line(request)
    await to_thread.run_sync(ctx.pools.pool, who, pool_id)
    holding, endings = await _reported(ctx.bodies, request)

    def report() -> Given | None:
        ctx.pools.report(who, pool_id, holding=holding, endings=endings)
        return ctx.pools.take(who, pool_id, None) if take else None

    given = await to_thread.run_sync(report)
    if given is None and take and wait > 0:
        given = await _next_call(ctx, request, who, pool_id, wait)
    return _given(ctx.bodies, given)


@router.post("/pools/{pool_id}/output", status_code=204, summary="Pass on what a call prints", openapi_extra=_BODY)
async def output(pool_id: PoolId, request: Request, ctx: Ctx, who: Who) -> Response:
    """For workers: frames with `call`, `stream` and `offset`, for those who follow the pool now."""
    _no_line(request)
    pieces = [_output(frame) async for frame in ctx.bodies.receive(request, most=_LARGEST_OUTPUT)]
    await to_thread.run_sync(ctx.pools.printed, who, pool_id, pieces)
    return Response(status_code=204)


def _no_line(request: Request) -> None:
    # What a worker says again and again; the pool and the submission of calls have their lines.
    tell_audit(request.scope, line=False)


# ---- what comes in


def _new_call(frame: Frame) -> NewCall:
    header = frame.header
    key, label, function, retries = (header.get(name) for name in ("key", "label", "function", "retries"))
    if not (isinstance(key, str) and 0 < len(key) <= 64 and key.isascii() and key.isprintable()):
        raise Invalid("A call's key is 1 to 64 printable characters.")
    if not (isinstance(label, str) and "\0" not in label and isinstance(function, str) and len(function) <= 80):
        raise Invalid("A call has a label and the digest of a function.")
    if type(retries) is not int or not 0 <= retries <= 100:
        raise Invalid(f"retries is {str(retries)[:40]}.", remedy="Ask for 0 to 100.")
    return NewCall(key=key, label=label[:255], function=function, retries=retries, body=frame.body)


async def _reported(bodies: CallBodies, request: Request) -> tuple[frozenset[int], list[Ending]]:
    holding: frozenset[int] = frozenset()
    endings: list[Ending] = []
    printed: dict[str, bytes] = {}
    async for frame in bodies.receive(request, most=LARGEST_BODY):
        kind = frame.header.get("type")
        if kind == "holding":
            calls = frame.header.get("calls")
            holding = frozenset(one for one in calls if type(one) is int) if isinstance(calls, list) else frozenset()
        elif kind in ("stdout", "stderr") and frame.body.data is not None:
            printed[kind] = frame.body.data
        elif kind == "ended":
            endings.append(_ending(frame, printed))
            printed = {}
        else:
            raise Invalid(f"A worker has nothing of type {str(kind)[:40]!r} to tell.")
    return holding, endings


def _ending(frame: Frame, printed: dict[str, bytes]) -> Ending:
    header = frame.header
    state = header.get("state")
    if type(header.get("call")) is not int or state not in (CallState.COMPLETED, CallState.FAILED):
        raise Invalid("An ending names its call and COMPLETED or FAILED.")
    return Ending(
        call_id=header["call"],
        state=CallState(state),
        error=str(header.get("error", ""))[:32],
        message=str(header.get("message", "")).replace("\0", "")[:_LONGEST_MESSAGE],
        body=frame.body,
        stdout=printed.get("stdout", b""),
        stderr=printed.get("stderr", b""),
    )


def _output(frame: Frame) -> Output:
    call, stream, offset = (frame.header.get(name) for name in ("call", "stream", "offset"))
    if type(call) is not int or stream not in ("stdout", "stderr") or type(offset) is not int:
        raise Invalid("Output has a call, a stream (stdout, stderr) and an offset.")
    return Output(call_id=call, stream=stream, offset=offset, data=frame.body.data or b"")


# ---- what goes out


async def _next_call(ctx: Gateway, request: Request, who: Caller, pool_id: int, wait: float) -> Given | None:
    """Wait for a call, for the worker's leave, or for the worker to be gone."""
    loop = asyncio.get_running_loop()
    rung = asyncio.Event()

    def bell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(rung.set)

    deadline = loop.time() + wait
    gone = asyncio.ensure_future(_gone(request))
    try:
        while not ctx.streams.doorbell.closing:
            rung.clear()
            given = await to_thread.run_sync(ctx.pools.take, who, pool_id, bell)
            if given is not None:
                return given
            patience = await to_thread.run_sync(ctx.pools.patience, who, pool_id)
            left = min(deadline - loop.time(), patience)
            waiting = asyncio.ensure_future(rung.wait())
            await asyncio.wait({waiting, gone}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            # What is given to a worker that is gone would count as begun.
            if gone.done() or ctx.streams.doorbell.closing:
                return None
            if not rung.is_set():
                await to_thread.run_sync(ctx.pools.stop_waiting, pool_id, bell)
                return await to_thread.run_sync(ctx.pools.take, who, pool_id, None)
        return None
    finally:
        gone.cancel()
        await to_thread.run_sync(ctx.pools.stop_waiting, pool_id, bell)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _given(bodies: CallBodies, given: Given | None) -> Response:
    if given is None or given.retire or given.call_id is None or given.arguments is None:
        kind = "retire" if given is not None and given.retire else "none"
        return Response(frames.encode({"type": kind}), media_type=_FRAMES)
    header = {"type": "call", "call": given.call_id, "function": given.function}
    start = frames.head(header, given.arguments.size)
    if given.arguments.path is None:
        return Response(start + (given.arguments.data or b""), media_type=_FRAMES)
    arguments = given.arguments

    def pieces() -> Any:
        yield start
        yield from bodies.pieces(arguments)

    size = {"Content-Length": str(len(start) + arguments.size)}
    return StreamingResponse(pieces(), media_type=_FRAMES, headers=size)


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
        parts = [frames.encode({"type": "begun", "call": call, "job": job}) for call, job in begun]
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

    with pools.follow(pool_id, bell) as listener:
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
    }
    return frames.encode(header, ending.stdout + ending.stderr + ((ending.body.data or b"") if inline else b""))


def _pool_view(pools: Pools, pool: WorkerPool) -> WorkerPoolView:
    return WorkerPoolView(
        id=pool.id,
        name=pool.spec.name,
        min_workers=pool.spec.min_workers,
        max_workers=pool.spec.max_workers,
        idle_time=pool.spec.idle_time,
        created_at=datetime.fromtimestamp(pool.created_at, UTC),
        closed_at=moment(pool.closed_at),
        parent=pool.parent,
        calls=dict(pools.counts(pool.id)),
        workers=_workers(pools, pool.id),
        trouble=pools.trouble(pool.id),
    )


def _workers(pools: Pools, pool_id: int) -> Sequence[WorkerView]:
    return [
        WorkerView(
            job_id=job.id,
            state=job.state.value,
            message=job.reason.message if job.reason is not None and not job.state.holds_resources else "",
        )
        for job in pools.workers(pool_id)
    ]


def call_view(call: Call) -> CallView:
    """A call as the wire has it."""
    return CallView(
        id=call.id,
        pool_id=call.pool_id,
        key=call.key,
        label=call.label,
        state=call.state.value,
        created_at=datetime.fromtimestamp(call.created_at, UTC),
        started_at=moment(call.started_at),
        ended_at=moment(call.ended_at),
        job_id=call.job_id,
        error=call.error,
        message=call.message,
        retries_left=call.retries_left,
        number=call.ended_number,
        arguments_size=call.arguments_size,
        result_size=call.result_size,
    )


def largest_body(path: str) -> int | None:
    """Largest request at an address of calls, or None for another one."""
    parts = path.removeprefix(f"{API}/pools/").split("/") if path.startswith(f"{API}/pools/") else []
    return LARGEST_BODY if len(parts) >= 2 and parts[1] in ("calls", "work", "functions") else None
