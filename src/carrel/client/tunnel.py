"""Bytes through a websocket of the lab's (RFC 6455), for what speaks a protocol of its own with a job."""

from __future__ import annotations

import os
import ssl
import threading
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from carrel.client.problems import error_of

_PIECE = 64 * 1024


def carry(url: str, token: str, trusted: ssl.SSLContext | None, read: int, write: int) -> None:
    """Carry bytes from the descriptor `read` to the websocket at `url` (http, https) and back to `write` until either ends.

    Raises the lab's own error when it refuses, and `httpx.ConnectError` when it does not answer.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    local = (parts.hostname or "") in ("localhost", "::1") or (parts.hostname or "").startswith("127.")
    try:
        connection = connect(
            parts._replace(scheme="wss" if secure else "ws").geturl(),
            additional_headers={"Authorization": f"Bearer {token}"},
            ssl=(trusted or ssl.create_default_context()) if secure else None,
            compression=None,
            max_size=None,
            proxy=None if local else True,
        )
    except InvalidStatus as refused:
        said = refused.response
        raise error_of(
            httpx.Response(said.status_code, headers=list(said.headers.raw_items()), content=bytes(said.body))
        ) from None
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise httpx.ConnectError(str(error)) from error
    with connection:
        threading.Thread(target=_send, args=(connection, read), daemon=True).start()
        with suppress(ConnectionClosed, BrokenPipeError):
            for message in connection:
                _write(write, message if isinstance(message, bytes) else message.encode())


def _send(connection: ClientConnection, read: int) -> None:
    with suppress(ConnectionClosed, OSError):
        while piece := os.read(read, _PIECE):
            connection.send(piece)
    connection.close()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
