"""A program as people start it in a session: pages that say what reached them, and a websocket. Prints its port."""

from __future__ import annotations

import asyncio
import hashlib
import sys

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets, bind_unix_socket
from tornado.web import Application, RequestHandler, stream_request_body
from tornado.websocket import WebSocketHandler


@stream_request_body
class Echo(RequestHandler):
    def initialize(self) -> None:
        self.digest, self.size = hashlib.sha256(), 0

    def prepare(self) -> None:
        self.request.connection.set_max_body_size(2**40)  # type: ignore[union-attr]

    def data_received(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)

    def get(self) -> None:
        self.set_header("X-Program", "yes")
        self.add_header("Set-Cookie", "a=1")
        self.add_header("Set-Cookie", "b=2")
        headers = {name.lower(): value for name, value in self.request.headers.get_all()}
        self.write(
            {"method": self.request.method, "uri": self.request.uri, "headers": headers, "size": self.size}
            | {"digest": self.digest.hexdigest()}
        )

    post = put = get

    def head(self) -> None:
        self.set_header("Content-Length", "123")


class Moved(RequestHandler):
    def get(self) -> None:
        self.redirect(self.get_argument("to"))


class Drops(RequestHandler):
    """Begins an answer, says more when it is told to, and notes when nobody listens any more."""

    left = asyncio.Event()

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.write("data: first\n\n")
        await self.flush()
        await self.left.wait()

    def on_connection_close(self) -> None:
        self.left.set()


class Left(RequestHandler):
    async def get(self) -> None:
        await Drops.left.wait()
        self.write("left")


class Large(RequestHandler):
    async def get(self) -> None:
        for _ in range(64):
            self.write(b"x" * 2**20)
            await self.flush()


class NotChanged(RequestHandler):
    def get(self) -> None:
        self.set_status(304)


class Talk(WebSocketHandler):
    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return subprotocols[0] if subprotocols else None

    def on_message(self, message: str | bytes) -> None:
        if message == "close":
            self.close(4321, "as asked")
        else:
            self.write_message(message, binary=isinstance(message, bytes))


async def main() -> None:
    routes = [("/moved", Moved), ("/endless", Drops), ("/left", Left), ("/large", Large), ("/304", NotChanged), ("/talk", Talk)]
    server = HTTPServer(Application([*routes, (".*", Echo)]))
    sockets = bind_sockets(0, sys.argv[1])
    server.add_sockets(sockets)
    if len(sys.argv) > 2:
        server.add_socket(bind_unix_socket(sys.argv[2], 0o600))
    print(sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
