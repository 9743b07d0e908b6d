"""Connecting to a session, wherever it is."""

from __future__ import annotations

import socket
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect, unix_connect

from carrel.notebooks.address import Address, UnixAddress, client_context
from carrel.notebooks.relay import KEEP_ALIVE


def base_url(address: Address) -> httpx.URL:
    """Scheme, host and port for requests over the transports below."""
    if isinstance(address, UnixAddress):
        return httpx.URL("http://session")
    return httpx.URL(scheme="https", host=address.host, port=address.port)


def transport(address: Address) -> httpx.HTTPTransport:
    """For a few requests from a thread."""
    if isinstance(address, UnixAddress):
        # There is no TLS on a unix socket: reading the machine's certificates would only take time.
        return httpx.HTTPTransport(uds=address.path, verify=False)
    return httpx.HTTPTransport(verify=client_context(address), socket_options=KEEP_ALIVE)


def async_transport(address: Address, limits: httpx.Limits) -> httpx.AsyncHTTPTransport:
    """For all requests of one session."""
    if isinstance(address, UnixAddress):
        return httpx.AsyncHTTPTransport(uds=address.path, limits=limits, verify=False)
    return httpx.AsyncHTTPTransport(limits=limits, verify=client_context(address), socket_options=KEEP_ALIVE)


async def connect_websocket(address: Address, host: str, target: str, **options: Any) -> ClientConnection:
    """A websocket to `target` (path and query) of what the session calls `host`."""
    if isinstance(address, UnixAddress):
        return await unix_connect(address.path, f"ws://{host}{target}", **options)
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
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(timeout)
                probe.connect(address.path)
        else:
            socket.create_connection((address.host, address.port), timeout).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""
