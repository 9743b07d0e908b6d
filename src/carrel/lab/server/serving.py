"""Answering HTTP: the socket, and uvicorn on it until a signal comes."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from carrel.core.domain.errors import Unavailable
from carrel.lab.server.connections import Door
from carrel.lab.server.settings import DEFAULT_PORT, Settings
from carrel.lab.server.tls import Certificate
from carrel.notebooks import LARGEST_MESSAGE


class Server:
    """uvicorn on a socket that is listening already, ended by SIGINT and SIGTERM, which also end event streams at once."""

    def __init__(
        self,
        app: FastAPI,
        front: ASGIApp,
        listener: socket.socket,
        *,
        ready: Callable[[], None],
        certificate: Certificate | None = None,
        connection_limit: int,
        proxied: bool = False,
        closing: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        import uvicorn

        from carrel.lab.server.websockets import LimitedWebSocket

        door = Door(listener, limit=connection_limit, proxied=proxied)
        tls = certificate.context if certificate is not None else None

        class Uvicorn(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                state = self.lifespan.state
                door.open(lambda one: protocol(self.config, self.server_state, {**state, "connection": one}), tls)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                door.close()
                await super().shutdown(sockets)

        config = uvicorn.Config(
            door.attended(front),
            log_config=None,
            proxy_headers=False,  # `BehindProxy` reads them
            # Addresses of sign-in links hold their ticket.
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=75,
            ws=LimitedWebSocket,
            ws_max_size=LARGEST_MESSAGE,
            ws_per_message_deflate=False,
            # The answer to a ping stands in line behind what a page sends; a large upload over a slow line is not the end.
            ws_ping_interval=30,
            ws_ping_timeout=300,
        )
        config.load()
        protocol: Any = config.http_protocol_class
        self._app = app
        self._ready = ready
        self._closing = closing
        self._server = Uvicorn(config)

    def run(self) -> None:
        """Serve until a signal comes."""
        inner = self._app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with inner(app) as state:
                self._ready()
                yield state
                for close in self._closing:
                    await close()

        self._app.router.lifespan_context = lifespan
        self._server.handle_exit = self._exit  # type: ignore[method-assign]
        self._server.run(sockets=[])

    def _exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn names the parameters
        self._app.state.close_streams()
        if self._server.should_exit and sig == signal.SIGINT:
            self._server.force_exit = True
        self._server.should_exit = True


def listen(settings: Settings, last: int | None) -> socket.socket:
    """Bind first, so that the address is known to everything that is wired after it.

    Where any port will do, it is the `last` one if that is free: tasks that outlived an earlier server find this one there.
    """
    asked = settings.port
    ports = [asked] if asked else []
    if asked in (0, DEFAULT_PORT):
        ports += [last] if last else []
        ports.append(0)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    failure: OSError | None = None
    for port in ports:
        try:
            listener.bind((settings.host, port))
            # Listening begins here: a client that has read the address is never refused, at most kept for a moment.
            listener.listen(4096)
        except OSError as error:
            failure = error
        else:
            return listener
    listener.close()
    raise Unavailable(
        f"Cannot listen on {settings.host}:{asked}: {failure.strerror if failure else 'no port'}.",
        remedy="Choose another with --port.",
    )


def name_of(host: str) -> str:
    """Return an address as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
