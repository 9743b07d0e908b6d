"""Carrying HTTP requests to a session's socket: both bodies as they come, of any size, at the pace of the slower side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import Enum

import httpx
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from carrel.notebooks.address import Address
from carrel.notebooks.proxy.headers import request_headers, response_headers
from carrel.notebooks.proxy.reach import async_transport, base_url
from carrel.notebooks.proxy.sessions import Session

#: Bytes of an answer from which on it is worth to look whether the browser is still there.
_LONG = 1024**2
#: Sessions to which connections are kept, before those are closed that nobody has used for the longest time.
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


@dataclass(slots=True)
class _Known:
    """The connections to one session."""

    address: Address
    client: httpx.AsyncClient
    #: Requests that are being carried.
    carried: int = 0


class HttpForwarder:
    """HTTP connections to the sessions. Belongs to one event loop."""

    def __init__(self) -> None:
        #: By job and attempt, in the order of their last use.
        self._clients: dict[tuple[int, int], _Known] = {}

    async def carry(self, session: Session, scope: Scope, receive: Receive, send: Send, identity: Mapping[str, str]) -> Carried:
        """Carry one request. Unless it is `ANSWERED`, nothing was sent to the browser."""
        if session.address is None:
            return Carried.NOT_REACHED
        request = Request(scope, receive)
        try:
            outgoing = _outgoing(scope, request, identity, base_url(session.address))
        except (httpx.InvalidURL, UnicodeDecodeError):
            return Carried.UNREADABLE
        known, superfluous = self._take((session.job_id, session.attempt), session.address)
        known.carried += 1
        try:
            for client in superfluous:
                await client.aclose()
            return await self._carry(known.client, outgoing, receive, send)
        finally:
            known.carried -= 1

    async def _carry(self, client: httpx.AsyncClient, outgoing: httpx.Request, receive: Receive, send: Send) -> Carried:
        try:
            answer = await client.send(outgoing, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return Carried.NOT_REACHED
        except httpx.LocalProtocolError:
            return Carried.UNREADABLE
        except httpx.TransportError:
            return Carried.BROKEN_OFF
        except ClientDisconnect:
            return Carried.ANSWERED  # the client has gone
        try:
            await self._answer(answer, receive, send)
        except httpx.TransportError:
            # The status is out already. Not finishing the body is how HTTP says that it is incomplete.
            return Carried.ANSWERED
        finally:
            with contextlib.suppress(httpx.TransportError):
                await answer.aclose()
        return Carried.ANSWERED

    async def forget(self, session: Session) -> None:
        """The session is over."""
        await self._drop((session.job_id, session.attempt))

    async def aclose(self) -> None:
        """Close all connections."""
        for key in list(self._clients):
            await self._drop(key)

    async def _drop(self, key: tuple[int, int]) -> None:
        known = self._clients.pop(key, None)
        if known is not None:
            await known.client.aclose()

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

    def _take(self, key: tuple[int, int], address: Address) -> tuple[_Known, list[httpx.AsyncClient]]:
        """The connections to a session, made when there are none to this address; and those that are to be closed."""
        before = self._clients.pop(key, None)
        superfluous: list[httpx.AsyncClient] = []
        if before is not None and before.address == address:
            known = before
        else:
            if before is not None:
                superfluous.append(before.client)
            elif len(self._clients) >= _CLIENTS:
                unused = [other for other, kept in self._clients.items() if not kept.carried]
                superfluous += [self._clients.pop(other).client for other in unused[: -_CLIENTS // 2]]
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
            # An answer may take hours, and an upload as long as it takes.
            timeout = httpx.Timeout(None, connect=10.0)
            client = httpx.AsyncClient(transport=async_transport(address, limits), timeout=timeout, trust_env=False)
            known = _Known(address, client)
        self._clients[key] = known  # at the end: what was used last is dropped last
        return known, superfluous


def _outgoing(scope: Scope, request: Request, identity: Mapping[str, str], base: httpx.URL) -> httpx.Request:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    if not path.startswith(b"/"):
        raise httpx.InvalidURL("not a path")
    query: bytes = scope["query_string"]
    return httpx.Request(
        scope["method"],
        base.copy_with(raw_path=path + (b"?" + query if query else b"")),
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
