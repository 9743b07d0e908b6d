"""Connecting to a session, wherever it is."""

from __future__ import annotations

import socket
from typing import Any

import httpcore
import httpx
from websockets.asyncio.client import ClientConnection, connect, unix_connect

from carrel.core.spool.foreign import socket_at
from carrel.core.transport.message_room import Place
from carrel.notebooks.address import Address, UnixAddress, client_context
from carrel.notebooks.relay import KEEP_ALIVE


def base_url(address: Address) -> httpx.URL:
    """Scheme, host and port for requests over the transports below."""
    if isinstance(address, UnixAddress):
        return httpx.URL("http://session")
    return httpx.URL(scheme="https", host=address.host, port=address.port)


def async_transport(address: Address, limits: httpx.Limits) -> httpx.AsyncHTTPTransport:
    """For requests of one event loop to one session."""
    if isinstance(address, UnixAddress):
        return _AsyncUnixTransport(address, limits)
    return httpx.AsyncHTTPTransport(limits=limits, verify=client_context(address), socket_options=KEEP_ALIVE)


class SessionWebSocket(ClientConnection):
    """A websocket to a session. One whose user has too many bytes on their way is cut off."""

    #: Where it counts what came.
    place: Place

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        if not self.place.came(len(data)):
            self.transport.abort()

    def passed_on(self) -> None:
        """All messages that were taken are on their way to the browser."""
        if not self.recv_messages.frames:
            self.place.holds(len(self.protocol.reader.buffer))

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        super().connection_lost(exc)
        self.place.holds(0)


async def connect_websocket(address: Address, host: str, target: str, place: Place, **options: Any) -> SessionWebSocket:
    """A websocket to `target` (path and query) of what the session calls `host`; it counts in `place` what comes."""

    def make(*words: Any, **more: Any) -> SessionWebSocket:
        made = SessionWebSocket(*words, **more)
        made.place = place
        return made

    made: Any = await _connected(address, host, target, create_connection=make, max_queue=1, **options)
    assert isinstance(made, SessionWebSocket)
    return made


async def _connected(address: Address, host: str, target: str, **options: Any) -> ClientConnection:
    if isinstance(address, UnixAddress):
        with socket_at(address.path) as place:
            return await unix_connect(place, f"ws://{host}{target}", **options)
    made = await connect(
        f"wss://{host}{target}",
        host=address.host,
        port=address.port,
        ssl=client_context(address),
        server_hostname="session",
        **options,
    )
    for option in KEEP_ALIVE:
        made.transport.get_extra_info("socket").setsockopt(*option)
    return made


def takes_connections(address: Address, *, timeout: float = 1.0) -> str:
    """Return "" when somebody listens there, else why that cannot be said."""
    try:
        if isinstance(address, UnixAddress):
            with socket_at(address.path) as place, socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(timeout)
                probe.connect(place)
        else:
            socket.create_connection((address.host, address.port), timeout).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


class _AsyncUnixTransport(httpx.AsyncHTTPTransport):
    """Requests to the socket of a session, which is looked at before each connection: the session may change what is there."""

    def __init__(self, address: UnixAddress, limits: httpx.Limits) -> None:
        # There is no TLS on a unix socket: reading the machine's certificates would only take time.
        super().__init__(verify=False)
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            uds=address.path,
            network_backend=_AsyncSockets(),
        )


class _AsyncSockets(httpcore.AnyIOBackend):
    async def connect_unix_socket(self, path: str, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        try:
            with socket_at(path) as place:
                return await super().connect_unix_socket(place, *args, **options)
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
