"""Cancels and interrupts of calls: the owner asks, and the worker that has the call hears of it."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response

from carrel.core.domain.call import Call
from carrel.core.domain.user import Caller
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import LARGEST, Ctx, Gateway, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.routes.pools import ANSWER, FRAMES, CallId, PoolId, call_view
from carrel.wire import frames
from carrel.wire.v1 import API, CallNumbers, CallView, CancelRequest

router = APIRouter(prefix=API, tags=["pools"], route_class=Endpoint)

#: Seconds between two looks, should a bell be missed.
_LOOK = 5.0
#: Seconds for a worker to say whether a call has begun.
_ANSWER = 30.0


@router.post("/calls/{call_id}/cancel", summary="Keep a call from beginning")
async def cancel_call(call_id: CallId, ctx: Ctx, who: Who) -> CallView:
    """One that has begun goes on. A worker that waits for a GPU with it is asked to give it back, which takes a moment."""
    call = await _cancelled(ctx, who, call_id)
    return await to_thread.run_sync(call_view, ctx.pools, call)


@router.post("/pools/{pool_id}/calls/cancel", summary="Keep calls of a pool from beginning")
def cancel_calls(pool_id: PoolId, request: CancelRequest, ctx: Ctx, who: Who) -> CallNumbers:
    """The answer has those that are cancelled now. One that a worker has and has not begun is cancelled as soon as it says so."""
    return CallNumbers(calls=list(ctx.pools.stops.cancel_all(who, pool_id, set(request.calls))))


async def _cancelled(ctx: Gateway, who: Caller, call_id: int) -> Call:
    stops, rung = ctx.pools.stops, _Bell()
    deadline = rung.loop.time() + _ANSWER
    while (call := await to_thread.run_sync(stops.cancel, who, call_id, rung.ring)) is None:
        left = deadline - rung.loop.time()
        if left <= 0 or ctx.streams.doorbell.closing:
            break
        await rung.wait(min(left, _LOOK))
    if call is None:  # its worker does not answer: the call may begin
        call = await to_thread.run_sync(ctx.pools.call, who, call_id)
        await to_thread.run_sync(stops.want_no_more, call, rung.ring)
    return call


@router.post("/calls/{call_id}/interrupt", summary="Interrupt a call")
def interrupt_call(call_id: CallId, ctx: Ctx, who: Who) -> CallView:
    """KeyboardInterrupt is raised in one that runs, or waits for its GPU; one that waits in line does not begin."""
    return call_view(ctx.pools, ctx.pools.stops.interrupt(who, call_id))


@router.post("/pools/{pool_id}/interrupts", summary="Wait for an interrupt of a call", response_class=Response, responses=ANSWER)
async def interrupts(
    pool_id: PoolId,
    request: Request,
    ctx: Ctx,
    who: Who,
    call: Annotated[int, Query(ge=1, le=LARGEST, description="The call that the worker has.")],
    begun: Annotated[bool, Query(description="False: it waits for a GPU, and can be given back.")] = True,
    wait: Annotated[float, Query(ge=0, le=30, description="Seconds to wait for it.")] = 25,
) -> Response:
    """For workers: one frame, `interrupt`, `return` or `none`; at once when the call has ended.

    `return`: the call is not wanted. A worker that has not begun it asks for its next one, and says that it holds none.
    """
    tell_audit(request.scope, line=False)  # said again and again
    await to_thread.run_sync(ctx.pools.pool, who, pool_id)
    rung = _Bell()
    deadline = rung.loop.time() + wait
    while True:
        wish = await to_thread.run_sync(partial(ctx.pools.stops.heard, begun=begun), who, pool_id, call, rung.ring)
        left = deadline - rung.loop.time()
        if wish is not None or left <= 0 or ctx.streams.doorbell.closing:
            return Response(frames.encode({"type": wish or "none"}), media_type=FRAMES)
        await rung.wait(min(left, _LOOK))


class _Bell:
    """Rung in any thread, awaited in the loop's."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float) -> None:
        """Return when it was rung since the last time, or after so long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rung.wait(), seconds)
        self._rung.clear()
