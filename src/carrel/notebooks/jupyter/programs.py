"""Pages of programs in the session, such as Dask's dashboard and TensorBoard, below ``/proxy/`` of the session's own address.

``/proxy/<port>/x`` is ``/x`` of the program that listens at this port; ``/proxy/absolute/<port>/x`` is passed on as it is, for
programs that are told where they are. Instead of a port stands the name of a socket in the session's directory of pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any
from urllib.parse import urlsplit

from jupyter_server.base.handlers import JupyterHandler
from tornado import web
from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError

from carrel.notebooks.identity import HEADER
from carrel.notebooks.jupyter.listeners import NAME, SessionListeners

#: What the handlers find in the server's settings.
LISTENERS = "carrel_listeners"
#: Routes of the handler, below the server's own base.
ROUTE = rf"proxy(?P<absolute>/absolute)?/(?P<place>[0-9]{{1,5}}|{NAME})(?P<path>/.*)?"
_PIECE, _LONGEST_HEAD, _UNLIMITED = 64 * 1024, 64 * 1024, 2**62
#: For the next hop only (RFC 9110, 7.6.1).
_HOP = frozenset(
    {"connection", "expect", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
#: Keys of the session itself, which its programs have no use for.
_KEPT_OUT = frozenset({HEADER.lower(), "authorization"})
_HUB_COOKIES = "jupyterhub-"
_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")


@web.stream_request_body
class ProgramHandler(JupyterHandler):
    """One request to a program, carried as it comes: bodies of any size, answers that never end, websockets."""

    SUPPORTED_METHODS = _METHODS
    _program: HTTP1Connection | None = None
    _stream: IOStream | None = None

    def set_default_headers(self) -> None:
        """None: the program says what holds for its pages."""

    def check_xsrf_cookie(self) -> None:
        """Programs do not know Jupyter's token; the session's own pages have to be the origin instead."""
        origin = self.request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != self.request.host.lower():
            raise web.HTTPError(403, "Another site has sent this request.")

    async def prepare(self, *, _redirect_to_login: bool = False) -> None:
        """Ask who it is (Jupyter's own answers 403), find the program, and begin the request."""
        await super().prepare(_redirect_to_login=False)
        if self._finished:
            return
        if self.current_user is None:
            raise web.HTTPError(403)
        self.check_xsrf_cookie()
        self.request.connection.set_max_body_size(_UNLIMITED)  # type: ignore[union-attr]
        if self.path_kwargs["path"] is None:
            query = f"?{self.request.query}" if self.request.query else ""
            # Whoever answers before the body was read closes the connection, and has to say so.
            self.set_header("Connection", "close")
            self.redirect(f"{self.request.path}/{query}")
            return
        self._stream = await self._connect(self.path_kwargs["place"])
        if self._websocket():
            return
        self._program = HTTP1Connection(
            self._stream,
            is_client=True,
            params=HTTP1ConnectionParameters(
                chunk_size=_PIECE, max_header_size=_LONGEST_HEAD, max_body_size=_UNLIMITED, no_keep_alive=True
            ),
        )
        headers = self._headers_for_program()
        headers["Connection"] = "close"
        with contextlib.suppress(StreamClosedError):
            await self._program.write_headers(RequestStartLine(self._method(), self._target(), "HTTP/1.1"), headers)

    async def data_received(self, chunk: bytes) -> None:
        """A piece of the request's body, at the pace of the program."""
        if self._program is not None:
            with contextlib.suppress(StreamClosedError):  # it may have answered already
                await self._program.write(chunk)

    async def get(self, **_: Any) -> None:
        """Carry the answer back."""
        if self._websocket():
            await self._carry_websocket()
            return
        assert self._program is not None
        answer = _Answer(self)
        with contextlib.suppress(StreamClosedError, HTTPInputError):
            self._program.finish()
            await self._program.read_response(answer)
        self._close()
        if not answer.begun:
            raise web.HTTPError(502, f"What listens at {self.path_kwargs['place']} gives no answer of HTTP.")
        if not self._finished:
            with contextlib.suppress(StreamClosedError):
                await self.finish()

    head = post = put = patch = delete = options = get

    def write_error(self, status_code: int, **options: Any) -> None:  # noqa: ARG002 # tornado's own
        """What is wrong, in one line."""
        error = options.get("exc_info", (None, None, None))[1]
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Connection", "close")
        self.finish(error.log_message if isinstance(error, web.HTTPError) and error.log_message else self._reason)

    def on_connection_close(self) -> None:
        """The browser has gone."""
        self._close()

    def on_finish(self) -> None:
        """Let go of the program."""
        super().on_finish()
        if not self._websocket():
            self._close()

    def begin_answer(self, line: ResponseStartLine, headers: HTTPHeaders) -> None:
        """Status and headers of the answer, as the browser gets them."""
        self.set_status(line.code, line.reason)
        named = _named_by_connection(headers)
        for name, value in headers.get_all():
            if name.lower() not in _HOP and name.lower() not in named:
                self.add_header(name, self._moved(value) if name.lower() == "location" else value)

    # ---- where to

    async def _connect(self, place: str) -> IOStream:
        listeners: SessionListeners = self.settings[LISTENERS]
        found = await asyncio.get_running_loop().run_in_executor(None, listeners.find, place)
        what = f"port {place}" if place.isdigit() else place
        if not found:
            raise web.HTTPError(404, f"No program of this session listens at {what}. Start it in this session, on 127.0.0.1.")
        for family, address in found:
            stream = IOStream(socket.socket(family), max_buffer_size=_UNLIMITED)
            try:
                await stream.connect(address)
            except OSError:
                stream.close()
            else:
                return stream
        raise web.HTTPError(502, f"The program at {what} takes no connection.")

    def _prefix(self) -> str:
        return f"{self.base_url}proxy/{self.path_kwargs['place']}"

    def _target(self) -> str:
        """Path and query for the program, encoded as they came."""
        uri = self.request.uri or "/"
        return uri if self.path_kwargs["absolute"] else uri[len(self._prefix()) :]

    def _moved(self, location: str) -> str:
        """Where a redirection of the program's leads from outside."""
        parts = urlsplit(location)
        own = not parts.netloc or parts.netloc.lower() == self.request.host.lower()
        if self.path_kwargs["absolute"] or not own or not parts.path.startswith("/"):
            return location
        moved = parts.path if parts.path.startswith(f"{self._prefix()}/") else f"{self._prefix()}{parts.path}"
        return parts._replace(scheme="", netloc="", path=moved).geturl()

    def _method(self) -> str:
        return self.request.method or "GET"

    # ---- what of a request the program sees

    def _headers_for_program(self) -> HTTPHeaders:
        named = _named_by_connection(self.request.headers)
        kept = HTTPHeaders()
        for name, value in self.request.headers.get_all():
            low = name.lower()
            if low == "cookie":
                parts = (part.strip() for part in value.split(";"))
                value = "; ".join(part for part in parts if part and not part.startswith(_HUB_COOKIES))
            if low not in _HOP and low not in _KEPT_OUT and low not in named and (value or low != "cookie"):
                kept.add(name, value)
        if not self.path_kwargs["absolute"]:
            kept["X-Forwarded-Prefix"] = self._prefix()
        return kept

    # ---- websockets

    def _websocket(self) -> bool:
        return self._method() == "GET" and self.request.headers.get("Upgrade", "").lower() == "websocket"

    async def _carry_websocket(self) -> None:
        """From the first byte after the request's head on, both sides talk as they like."""
        program, self._stream = self._stream, None
        assert program is not None
        headers = self._headers_for_program()
        headers["Connection"], headers["Upgrade"] = "Upgrade", "websocket"
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.get_all())
        browser = self.detach()
        try:
            await program.write(f"GET {self._target()} HTTP/1.1\r\n{head}\r\n".encode("latin-1"))
            ways = [asyncio.ensure_future(_pump(browser, program)), asyncio.ensure_future(_pump(program, browser))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except StreamClosedError:
            return
        finally:
            program.close()
            browser.close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()


class _Answer(HTTPMessageDelegate):
    """Passes a program's answer on while it comes."""

    def __init__(self, handler: ProgramHandler) -> None:
        self._handler = handler
        self.begun = False

    async def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        if not isinstance(start_line, ResponseStartLine) or start_line.code < 200:
            return
        self.begun = True
        self._handler.begin_answer(start_line, headers)
        await self._flush()

    async def data_received(self, chunk: bytes) -> None:
        self._handler.write(chunk)
        await self._flush()

    async def _flush(self) -> None:
        # A browser that has gone has closed the program's connection, too (`on_connection_close`).
        with contextlib.suppress(StreamClosedError):
            await self._handler.flush()


async def _pump(source: IOStream, sink: IOStream) -> None:
    with contextlib.suppress(StreamClosedError):
        while True:
            await sink.write(await source.read_bytes(_PIECE, partial=True))


def _named_by_connection(headers: HTTPHeaders) -> set[str]:
    return {word.strip().lower() for value in headers.get_list("Connection") for word in value.split(",")}
