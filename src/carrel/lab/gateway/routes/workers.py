"""What workers of pools ask: the next call; and what they tell: how calls ended, and what they print."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from carrel.core.control.pool_board import Given, Output
from carrel.core.domain.call import Body, CallState, Ending
from carrel.core.domain.errors import Invalid, TooLarge
from carrel.core.domain.user import Caller
from carrel.lab.gateway.call_bodies import CallBodies, Frame
from carrel.lab.gateway.context import Ctx, Gateway, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.routes.pools import ANSWER, BODY, FRAMES, LARGEST_BODY, PoolId, no_line, plain_text
from carrel.wire import frames
from carrel.wire.v1 import API

router = APIRouter(prefix=API, tags=["pools"], route_class=Endpoint)

#: Bytes of what a worker prints, at once.
_LARGEST_OUTPUT = 1024 * 1024
_LONGEST_MESSAGE = 10_000


@router.post("/pools/{pool_id}/work", summary="Take the next call", response_class=Response, openapi_extra=BODY, responses=ANSWER)
async def work(
    pool_id: PoolId,
    request: Request,
    ctx: Ctx,
    who: Who,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for it.")] = 30,
    take: Annotated[bool, Query(description="False: tell only; no call is wanted.")] = True,
    files: Annotated[bool, Query(description="Large arguments may be in a file: `file` in the header, a ticket.")] = False,
) -> Response:
    """For workers: a frame `holding` (calls), frames `stdout`, `stderr` and `ended` (call, state, …) of what it has finished.

    The answer is one frame: `call` with its arguments, `none`, or `retire`: the worker is not needed any more. Its header says
    in `files` whether the lab has files for results.
    """
    no_line(request)
    await to_thread.run_sync(ctx.pools.pool, who, pool_id)
    holding, endings = await _reported(ctx, who, request)

    def report() -> Given | None:
        ctx.pools.report(who, pool_id, holding=holding, endings=endings)
        return ctx.pools.take(who, pool_id, None) if take else None

    given = await to_thread.run_sync(report)
    if given is None and take and wait > 0:
        given = await _next_call(ctx, request, who, pool_id, wait)
    return _given(ctx, who, given, files=files)


@router.post("/pools/{pool_id}/output", status_code=204, summary="Pass on what a call prints", openapi_extra=BODY)
async def output(pool_id: PoolId, request: Request, ctx: Ctx, who: Who) -> Response:
    """For workers: frames with `call`, `stream` and `offset`, for those who follow the pool now."""
    no_line(request)
    pieces = [_output(ctx.bodies, frame) async for frame in ctx.bodies.receive(request, most=_LARGEST_OUTPUT)]
    await to_thread.run_sync(ctx.pools.printed, who, pool_id, pieces)
    return Response(status_code=204)


# ---- what comes in


async def _reported(ctx: Gateway, who: Caller, request: Request) -> tuple[frozenset[int], list[Ending]]:
    holding: frozenset[int] = frozenset()
    endings: list[Ending] = []
    printed: dict[str, bytes] = {}
    taken: list[Body] = []
    try:
        async for frame in ctx.bodies.receive(request, most=LARGEST_BODY):
            taken.append(frame.body)
            kind = frame.header.get("type")
            if kind == "holding":
                calls = frame.header.get("calls")
                holding = frozenset(one for one in calls if type(one) is int) if isinstance(calls, list) else frozenset()
            elif kind in ("stdout", "stderr"):
                if frame.body.size > _LARGEST_OUTPUT:
                    raise TooLarge(f"{frame.body.size} bytes of {kind}; at most {_LARGEST_OUTPUT}.", remedy="Send the end of it.")
                printed[kind] = _content(ctx.bodies, frame)
            elif kind == "ended":
                frame = await ctx.files.with_file(frame, who.user.subject)
                taken.append(frame.body)
                endings.append(_ending(frame, printed))
                printed = {}
            else:
                raise Invalid(f"A worker has nothing of type {str(kind)[:40]!r} to tell.")
    except BaseException:
        for body in taken:
            ctx.bodies.discard(body)
        raise
    return holding, endings


def _ending(frame: Frame, printed: dict[str, bytes]) -> Ending:
    header = frame.header
    state = header.get("state")
    if type(header.get("call")) is not int or state not in (CallState.COMPLETED, CallState.FAILED):
        raise Invalid("An ending names its call and COMPLETED or FAILED.")
    return Ending(
        call_id=header["call"],
        state=CallState(state),
        error=plain_text(header.get("error", ""))[:32],
        message=plain_text(header.get("message", ""))[:_LONGEST_MESSAGE],
        body=frame.body,
        stdout=printed.get("stdout", b""),
        stderr=printed.get("stderr", b""),
    )


def _output(bodies: CallBodies, frame: Frame) -> Output:
    call, stream, offset = (frame.header.get(name) for name in ("call", "stream", "offset"))
    if type(call) is not int or stream not in ("stdout", "stderr", "display") or type(offset) is not int:
        raise Invalid("Output has a call (0: before the first), a stream (stdout, stderr, display) and an offset.")
    return Output(call_id=call, stream=stream, offset=offset, data=_content(bodies, frame))


def _content(bodies: CallBodies, frame: Frame) -> bytes:
    """What the frame has, in memory: a long piece lies in a file, which is needed no more."""
    data = b"".join(bodies.pieces(frame.body))
    bodies.discard(frame.body)
    return data


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


def _given(ctx: Gateway, who: Caller, given: Given | None, *, files: bool) -> Response:
    here = {"files": True} if files and ctx.files.open else {}
    if given is None or given.retire or given.call_id is None or given.arguments is None:
        kind = "retire" if given is not None and given.retire else "none"
        return Response(frames.encode({"type": kind, **here}), media_type=FRAMES)
    header = {"type": "call", "call": given.call_id, "function": given.function, **here}
    header |= {} if given.time_limit is None else {"time_limit": given.time_limit}
    if files and (found := ctx.files.to_read(who.user.subject, given.arguments)) is not None:
        return Response(frames.encode({**header, "file": found}), media_type=FRAMES)
    start = frames.head(header, given.arguments.size)
    if given.arguments.path is None:
        return Response(start + (given.arguments.data or b""), media_type=FRAMES)
    arguments = given.arguments

    def pieces() -> Any:
        yield start
        yield from ctx.bodies.pieces(arguments)

    size = {"Content-Length": str(len(start) + arguments.size)}
    return StreamingResponse(pieces(), media_type=FRAMES, headers=size)
