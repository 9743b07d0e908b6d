"""Ssh into jobs: a certificate, and the bytes of a connection through a websocket."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from anyio import to_thread
from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from carrel.core.domain.errors import CarrelError, Invalid
from carrel.core.domain.qos import JobKind
from carrel.core.policy.access import Action
from carrel.lab.gateway.auditing import tell_audit
from carrel.lab.gateway.context import LARGEST, Ctx, Gateway, JobId, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.lab.gateway.errors import problem_of, problem_response
from carrel.wire.v1 import API, SshRequest, SshView

router = APIRouter(prefix=API, tags=["jobs"], route_class=Endpoint)

_PIECE = 64 * 1024


@router.post("/jobs/{job_id}/ssh", summary="A certificate to enter a running job by ssh")
def certify(job_id: JobId, request: SshRequest, ctx: Ctx, who: Who) -> SshView:
    """For the owner's own public key, this attempt of the job and five minutes. `GET …/ssh/stream` carries the connection."""
    return ctx.ssh.certify(who, job_id, request.public_key)


@router.get("/jobs/{job_id}/ssh/stream", summary="A websocket that carries one ssh connection to a running job")
def no_stream(job_id: JobId, ctx: Ctx, who: Who) -> SshView:
    """Binary messages of any length, both ways. A request that does not become a websocket is told so."""
    ctx.lab.job(who, job_id, Action.ENTER_JOB)
    raise Invalid(
        "The request does not ask for a websocket.",
        remedy='Send it as RFC 6455 says; a proxy in front of the lab has to pass "Upgrade" on.',
    )


async def stream(websocket: WebSocket) -> None:
    """A websocket that carries one ssh connection, in binary messages of any length."""
    gateway: Gateway = websocket.app.state.gateway
    tell_audit(websocket.scope, line=True)
    job_id: int = websocket.path_params["job_id"]
    try:
        if not 0 < job_id <= LARGEST:
            raise Invalid(f"There is no job {job_id}.")
        job, connection = await to_thread.run_sync(gateway.ssh.connect, websocket.state.grant.caller, job_id)
    except CarrelError as error:
        await websocket.send_denial_response(problem_response(*problem_of(error)))
        return
    of_session = gateway.sessions if job.kind is JobKind.SESSION else None
    with connection:
        await websocket.accept()
        if of_session is not None:
            of_session.connected(job, 1)
        try:
            await _carry(websocket, connection)
        finally:
            if of_session is not None:
                of_session.connected(job, -1)


async def _carry(websocket: WebSocket, connection: socket.socket) -> None:
    """Both ways, until one side ends."""
    loop = asyncio.get_running_loop()

    async def into_job() -> None:
        with contextlib.suppress(WebSocketDisconnect, OSError):
            while True:
                await loop.sock_sendall(connection, await websocket.receive_bytes())

    async def out_of_job() -> None:
        with contextlib.suppress(WebSocketDisconnect, OSError, RuntimeError):  # the client has gone
            while piece := await loop.sock_recv(connection, _PIECE):
                await websocket.send_bytes(piece)
            await websocket.close()

    ways = [asyncio.create_task(into_job()), asyncio.create_task(out_of_job())]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


#: The OpenAPI document knows no websockets: there it is `no_stream`.
STREAM = WebSocketRoute(f"{API}/jobs/{{job_id:int}}/ssh/stream", stream)
