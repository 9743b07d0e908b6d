"""Carrying HTTP requests to a session's socket: both bodies as they come, of any size, at the pace of the slower side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from enum import Enum
from pathlib import Path

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from carrel.notebooks.proxy.headers import request_headers, response_headers
from carrel.notebooks.proxy.sessions import Session

#: Bytes of an answer from which on it is worth to look whether the browser is still there.
_LONG = 1024**2
#: Clients that are kept before those of sessions that are gone are looked for.
_CLIENTS = 32


class Carried(Enum):
    """What became of a request."""

    ANSWERED = "answered"
    #: Nobody takes connections; the session has not seen the request.
    NOT_REACHED = "not reached"
    #: The session took it and went away before it answered.
    BROKEN_OFF = "broken off"
    #: It cannot be passed on as it is.
    UNREADABLE = "unreadable"


class HttpForwarder:
    """HTTP connections to the sessions' sockets. Belongs to one event loop."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def carry(self, session: Session, scope: Scope, receive: Receive, send: Send, identity: Mapping[str, str]) -> Carried:
        """Carry one request. Unless it is `ANSWERED`, nothing was sent to the browser."""
        request = Request(scope, receive)
        try:
            outgoing = _outgoing(scope, request, identity)
        except (httpx.InvalidURL, UnicodeDecodeError):
            return Carried.UNREADABLE
        try:
            answer = await (await self._client(session.socket)).send(outgoing, stream=True)
        except httpx.ConnectError:
            return Carried.NOT_REACHED
        except httpx.LocalProtocolError:
            return Carried.UNREADABLE
        except httpx.TransportError:
            return Carried.BROKEN_OFF
        except ClientDisconnect:
            return Carried.ANSWERED  # nobody is there to be told
        try:
            await self._answer(answer, receive, send)
        except httpx.TransportError:
            # The status is out already. Not finishing the body is how HTTP says that it is incomplete.
            return Carried.ANSWERED
        finally:
            with contextlib.suppress(httpx.TransportError):
                await answer.aclose()
        return Carried.ANSWERED

    async def forget(self, socket: str) -> None:
        """The session is over."""
        client = self._clients.pop(socket, None)
        if client is not None:
            await client.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        for socket in list(self._clients):
            await self.forget(socket)

    async def _answer(self, answer: httpx.Response, receive: Receive, send: Send) -> None:
        headers = response_headers(answer.headers.raw)
        await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        if int(answer.headers.get("content-length", _LONG)) < _LONG:
            await _pump(answer, send)
            return
        # A browser that goes away in the middle of a download, or of a stream without end, must not keep it going.
        pump = asyncio.create_task(_pump(answer, send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            pump.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pump

    async def _client(self, socket: str) -> httpx.AsyncClient:
        client = self._clients.get(socket)
        if client is None:
            if len(self._clients) >= _CLIENTS:
                for known in [known for known in self._clients if not Path(known).exists()]:
                    await self.forget(known)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
            # There is no TLS on a unix socket: reading the machine's certificates would only take time.
            transport = httpx.AsyncHTTPTransport(uds=socket, limits=limits, verify=False)
            # An answer may take hours, and an upload as long as it takes.
            client = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(None, connect=10.0), trust_env=False)
            self._clients[socket] = client
        return client


def _outgoing(scope: Scope, request: Request, identity: Mapping[str, str]) -> httpx.Request:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    if not path.startswith(b"/"):
        raise httpx.InvalidURL("not a path")
    query: bytes = scope["query_string"]
    return httpx.Request(
        scope["method"],
        httpx.URL(scheme="http", host="session", raw_path=path + (b"?" + query if query else b"")),
        headers=request_headers(scope["headers"], identity),
        content=_body(request) if _has_body(scope) else None,
    )


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _value in scope["headers"])


async def _body(request: Request) -> AsyncIterator[bytes]:
    async for piece in request.stream():
        if piece:
            yield piece


async def _pump(answer: httpx.Response, send: Send) -> None:
    async for piece in answer.aiter_raw():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
