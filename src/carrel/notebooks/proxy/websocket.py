"""Carrying websockets (RFC 6455) to a session's socket: messages at the pace of the slower side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Origin, Subprotocol

from carrel.core.transport.message_room import Place
from carrel.notebooks import LARGEST_MESSAGE
from carrel.notebooks.proxy.headers import request_headers
from carrel.notebooks.proxy.reach import SessionWebSocket, connect_websocket
from carrel.notebooks.proxy.sessions import Session

#: Said by the websocket library itself, for the connection that it makes.
_LIBRARY = frozenset({b"host", b"origin", b"accept-encoding", b"content-length"})
#: "Service restart": come again. For a session that went away without a word.
_GONE = 1012
_SAYABLE = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015)})


async def carry(
    session: Session, scope: Scope, receive: Receive, send: Send, *, identity: Mapping[str, str], place: Place
) -> bool:
    """Carry one websocket until either side closes it. False when the session did not take it; then nothing was sent.

    `place` counts what comes from the session.
    """
    try:
        inner = await _connect(session, scope, identity, place)
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError, UnicodeDecodeError):
        return False
    browser = WebSocket(scope, receive, send)
    async with inner:
        await browser.accept(subprotocol=inner.subprotocol)
        await _both_ways(browser, inner)
    return True


async def _connect(session: Session, scope: Scope, identity: Mapping[str, str], place: Place) -> SessionWebSocket:
    headers = [
        (name.decode("ascii"), value.decode("latin-1"))
        for name, value in request_headers(scope["headers"], identity)
        if name not in _LIBRARY
    ]
    host = next((value.decode("ascii") for name, value in scope["headers"] if name == b"host"), "session")
    path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii")
    query = scope["query_string"].decode("ascii")
    if session.address is None:
        raise OSError("nobody knows where it is")
    return await connect_websocket(
        session.address,
        host,
        f"{path}{'?' + query if query else ''}",
        place,
        additional_headers=headers,
        # The browser's origin was compared with its host before; towards the session both are the session's own name.
        origin=Origin(f"http://{host}"),
        subprotocols=[Subprotocol(name) for name in scope.get("subprotocols", ()) if name] or None,
        max_size=LARGEST_MESSAGE,
        compression=None,
        # Whether somebody is there the system tells, of a unix socket at once, of another machine by its keep-alive.
        ping_interval=None,
        open_timeout=60,
        close_timeout=5,
        user_agent_header=None,
        proxy=None,
    )


async def _both_ways(browser: WebSocket, inner: SessionWebSocket) -> None:
    there = asyncio.create_task(_to_session(browser, inner))
    back = asyncio.create_task(_to_browser(inner, browser))
    try:
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (there, back):
            task.cancel()
        for task in (there, back):
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await task


async def _to_session(browser: WebSocket, inner: SessionWebSocket) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = await browser.receive()
            if message["type"] == "websocket.disconnect":
                await inner.close(sayable(message.get("code"), otherwise=1001), message.get("reason") or "")
                return
            data = message.get("bytes")
            await inner.send(message["text"] if data is None else data)


async def _to_browser(inner: SessionWebSocket, browser: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the browser has gone
        try:
            async for message in inner:
                if isinstance(message, str):
                    await browser.send_text(message)
                else:
                    await browser.send_bytes(message)
                inner.passed_on()
        except ConnectionClosed:
            pass
        await browser.close(sayable(inner.close_code, otherwise=_GONE), inner.close_reason or "")


def sayable(code: int | None, *, otherwise: int) -> int:
    """A close code that may be sent (RFC 6455, 7.4): the others say that there was none."""
    if code == 1005:
        return 1000
    return code if code is not None and (code in _SAYABLE or 3000 <= code < 5000) else otherwise
