"""What workers of pools ask: the next call; and what they tell: how calls ended, and what they print."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from carrel.core.control.pool_board import Given, Hand, Output
from carrel.core.domain.call import Body, CallState, Ending
from carrel.core.domain.errors import Invalid, TooLarge
from carrel.core.domain.user import Caller
from carrel.lab.gateway.call_bodies import CallBodies, Frame
from carrel.lab.gateway.context import Ctx, Gateway, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.routes.pools import ANSWER, BODY, FRAMES, LARGEST_BODY, PoolId, known, no_line, plain_text
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

    The answer is a frame `call` with its arguments, or several that are carried out in their order; `none`; or `retire`: the
    worker is not needed any more. The first header says in `files` whether the lab has files for results.
    """
    no_line(request)
    await known(ctx, who, pool_id)
    holding, endings = await _reported(ctx, who, request)
    bell = _Bell()

    def report() -> tuple[Hand | None, float]:
        ctx.pools.report(who, pool_id, holding=holding, endings=endings)
        return _taken(ctx, who, pool_id, bell if wait > 0 else None) if take else (None, 0.0)

    hand, patience = await to_thread.run_sync(report)
    if hand is None and take and wait > 0:
        hand = await _next_hand(ctx, request, who, pool_id, bell, wait, patience)
    return _given(ctx, who, hand, files=files)


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
        seconds=header["seconds"] if type(header.get("seconds")) is float else None,
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


class _Bell:
    """Rung in any thread when there may be a call."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.rung = asyncio.Event()

    def __call__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.rung.set)


def _taken(ctx: Gateway, who: Caller, pool_id: int, bell: _Bell | None) -> tuple[Hand | None, float]:
    """The next calls, and how long a worker that gets none may wait."""
    hand = ctx.pools.take(who, pool_id, bell)
    return hand, ctx.pools.patience(who, pool_id) if hand is None and bell is not None else 0.0


async def _next_hand(
    ctx: Gateway, request: Request, who: Caller, pool_id: int, bell: _Bell, wait: float, patience: float
) -> Hand | None:
    """Wait for a call, for the worker's leave, or for the worker to be gone. `bell` will be rung."""
    loop, hand = bell.loop, None
    deadline = loop.time() + wait
    gone = asyncio.ensure_future(_gone(request))
    try:
        while not ctx.streams.doorbell.closing:
            waiting = asyncio.ensure_future(bell.rung.wait())
            left = min(deadline - loop.time(), patience)
            await asyncio.wait({waiting, gone}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            # What is given to a worker that is gone would count as begun.
            if gone.done() or ctx.streams.doorbell.closing:
                return None
            if not bell.rung.is_set():
                await to_thread.run_sync(ctx.pools.stop_waiting, pool_id, bell)
                return await to_thread.run_sync(ctx.pools.take, who, pool_id, None)
            bell.rung.clear()
            hand, patience = await to_thread.run_sync(_taken, ctx, who, pool_id, bell)
            if hand is not None:
                return hand
        return None
    finally:
        gone.cancel()
        if hand is None:
            await to_thread.run_sync(ctx.pools.stop_waiting, pool_id, bell)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _header(given: Given) -> dict[str, Any]:
    limit = {} if given.time_limit is None else {"time_limit": given.time_limit}
    return {"type": "call", "call": given.call_id, "function": given.function, **limit}


def _given(ctx: Gateway, who: Caller, hand: Hand | None, *, files: bool) -> Response:
    here = {"files": True} if files and ctx.files.open else {}
    if not hand:
        return Response(frames.encode({"type": "none" if hand is None else "retire", **here}), media_type=FRAMES)
    headers = [_header(one) | here for one in hand]
    arguments = hand[0].arguments
    if files and (found := ctx.files.to_read(who.user.subject, arguments)) is not None:
        return Response(frames.encode({**headers[0], "file": found}), media_type=FRAMES)
    if arguments.path is None:
        content = [frames.encode(header, one.arguments.data or b"") for header, one in zip(headers, hand, strict=True)]
        return Response(b"".join(content), media_type=FRAMES)
    start = frames.head(headers[0], arguments.size)  # it is alone

    def pieces() -> Any:
        yield start
        yield from ctx.bodies.pieces(arguments)

    size = {"Content-Length": str(len(start) + arguments.size)}
    return StreamingResponse(pieces(), media_type=FRAMES, headers=size)
