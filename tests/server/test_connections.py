"""Who gives way when there are too many connections, and how long one may be silent: a real server on the loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from carrel.core.domain.errors import TooMany
from carrel.core.transport.message_room import MessageRoom
from carrel.lab.server import connections
from carrel.lab.server.connections import FIRST_WORDS, Door
from carrel.lab.server.websockets import LimitedWebSocket
from carrel.notebooks.address import make_certificate
from carrel.testing.waiting import PATIENCE

HALF = b"GET / HTTP/1.1\r\nHost: lab\r\nX-Never-Ends: "
UPLOAD = b"POST /upload HTTP/1.1\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\r\n"
LIMIT = 32
PIECE = 65536
#: Bytes that websockets of one user may hold.
ROOM = 16 * PIECE


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def say(self, words: bytes) -> Client:
        self.writer.write(words)
        await self.writer.drain()
        return self

    async def hear(self, words: bytes) -> None:
        heard = await asyncio.wait_for(self.reader.readuntil(words), PATIENCE)
        assert heard.endswith(words)

    async def ended(self) -> bytes:
        """Wait until the other side has closed it; what it had sent."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionError:
            return b""

    async def ask(self, path: str) -> str:
        await self.say(f"GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n".encode())
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        return head.decode().splitlines()[0].split(" ", 1)[1]


@dataclass
class Site:
    """A server whose time stands still."""

    door: Door
    port: int
    now: list[float]
    tls: ssl.SSLContext | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    uploaded: list[int] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def client(self, words: bytes = b"", *, tls: bool = False) -> Client:
        context = ssl.create_default_context() if tls else None
        if context is not None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        one = Client(*await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self.port, ssl=context), PATIENCE))
        self.clients.append(one)
        return await one.say(words)

    async def later(self, seconds: float) -> None:
        """Let time go on, and the server look at its deadlines twice."""
        self.now[0] += seconds
        for _ in range(2):
            looked = asyncio.Event()
            asyncio.get_running_loop().call_later(0.005, looked.set)
            await looked.wait()

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`/NAME/…` is NAME's, and signed in; `…/stream` says a word, and another one at `go`."""
        if scope["type"] == "websocket":
            await self.talk(scope, receive, send)
            return
        request, path = Request(scope, receive), scope["path"]
        name = path.split("/")[1]
        if name in ("alice", "mallory"):
            try:
                scope["state"]["connection"].known(name, 7 if path.endswith("/job") else None)
            except TooMany:
                await _send(send, 429, b"")
                return
        if path == "/upload":
            size = 0
            async for piece in request.stream():
                size += len(piece)
                self.uploaded.append(size)
            await _send(send, 200, b"taken")
        elif path.endswith(("/stream", "/job")):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            await self.go.wait()
            await send({"type": "http.response.body", "body": b"second", "more_body": False})
        elif path == "/large":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(200):
                await send({"type": "http.response.body", "body": bytes(PIECE), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await _send(send, 200, b"")

    async def talk(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A websocket of the user that its path names; without a name it waits until `go`. `…/idle` is not read until then."""
        _, name, *more = scope["path"].split("/")
        if name:
            scope["state"]["connection"].known(name, 0)
        await receive()
        if not name:
            await self.go.wait()
        await send({"type": "websocket.accept"})
        if more:
            await self.go.wait()
        while (await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": "taken"})


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class _SmallRoom(LimitedWebSocket):
    room = MessageRoom(ROOM)


@asynccontextmanager
async def site(tls: ssl.SSLContext | None = None) -> AsyncIterator[Site]:
    listener = socket.create_server(("127.0.0.1", 0))
    now = [1000.0]
    door = Door(listener, limit=LIMIT, monotonic=lambda: now[0])
    place = Site(door, listener.getsockname()[1], now)
    config = uvicorn.Config(door.attended(place.answer), http="httptools", lifespan="off", log_config=None, ws=_SmallRoom)
    config.load()
    protocol = config.http_protocol_class
    door.open(lambda one: protocol(config, ServerState(), {"connection": one}), tls)  # type: ignore[call-arg]
    try:
        yield place
    finally:
        place.go.set()
        for client in place.clients:
            client.writer.close()
        door.close()


def run(test: Callable[[Site], Coroutine[Any, Any, None]], tls: ssl.SSLContext | None = None) -> None:
    async def at_a_site() -> None:
        async with site(tls) as place:
            await test(place)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as uvicorn chooses
        runner.run(at_a_site())


def served(test: Callable[[Site], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """The test at a server of its own."""

    def alone() -> None:
        run(test)

    return alone


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOOK", 0.001)


@served
async def test_a_head_has_to_come_in_time_and_a_connection_between_requests_has_longer(place: Site) -> None:
    silent, half, idle = await place.client(), await place.client(HALF), await place.client()
    assert await idle.ask("/") == "200 OK"
    await place.later(FIRST_WORDS + 1)
    assert await silent.ended() == await half.ended() == b""
    assert await idle.ask("/") == "200 OK"
    await idle.say(HALF)  # a second head that does not end
    await place.later(100)
    await idle.ended()


@served
async def test_the_stranger_that_was_silent_for_the_longest_time_gives_way(place: Site) -> None:
    silent = [await place.client(HALF) for _ in range(10 * LIMIT)]
    assert await (await place.client()).ask("/") == "200 OK"
    for one in silent[: 9 * LIMIT]:
        assert await one.ended() == b""
    assert await (await silent[-1].say(b"\r\n\r\n")).reader.readline() == b"HTTP/1.1 200 OK\r\n"


@served
async def test_bodies_that_do_not_come_take_no_place_from_others(place: Site) -> None:
    slow = [await place.client(UPLOAD) for _ in range(3 * LIMIT)]
    assert await (await place.client()).ask("/") == "200 OK"
    for one in slow[: 2 * LIMIT]:
        await one.ended()


@pytest.mark.gate
@served
async def test_no_flood_takes_a_place_from_who_is_signed_in(place: Site) -> None:
    streams = [await place.client() for _ in range(12)]
    for one in streams:
        assert await one.ask("/alice/stream") == "200 OK"
        await one.hear(b"first")
    for _ in range(10 * LIMIT):
        await place.client(HALF)
    assert await (await place.client()).ask("/") == "200 OK"
    place.go.set()
    for one in streams:
        await one.hear(b"second")


@served
async def test_where_all_are_signed_in_the_one_with_most_gives_way(place: Site) -> None:
    paths = ["/alice/stream", *["/mallory/stream"] * 16, *["/mallory/job"] * 15]
    streams = [await place.client() for _ in paths]
    for one, path in zip(streams, paths, strict=True):
        assert await one.ask(path) == "200 OK"
    for _ in range(10):
        assert await (await place.client()).ask("/alice/short") == "200 OK"
    await streams[1].ended()
    place.go.set()
    await streams[0].hear(b"first")
    await streams[0].hear(b"second")


@served
async def test_one_user_has_so_many_requests_at_once_and_a_job_of_theirs_by_itself(place: Site) -> None:
    streams = [await place.client() for _ in range(16)]
    for one in streams:
        assert await one.ask("/mallory/stream") == "200 OK"
    assert await (await place.client()).ask("/mallory/stream") == "429 Too Many Requests"
    assert await (await place.client()).ask("/mallory/job") == "200 OK"
    streams[0].writer.close()
    await streams[0].writer.wait_closed()
    again = await place.client()
    while await again.ask("/mallory/short") != "200 OK":
        pass  # the server has not seen the end yet


@pytest.mark.gate
@served
async def test_a_body_comes_at_a_pace_or_ends_and_a_slow_line_is_no_hindrance(place: Site) -> None:
    drip, honest = await place.client(UPLOAD), await place.client(UPLOAD)
    for turn in range(1, 30):
        await honest.say(b"%x\r\n%b\r\n" % (PIECE, bytes(PIECE)))
        while place.uploaded[-1:] < [turn * PIECE]:
            await asyncio.sleep(0)
        if turn == 1:
            await drip.say(b"1\r\nx\r\n")
        await place.later(50)
    assert await drip.ended() == b""
    await honest.say(b"0\r\n\r\n")
    await honest.hear(b"taken")


@served
async def test_an_answer_has_to_be_read(place: Site) -> None:
    deaf, slow = await place.client(), await place.client()
    assert await deaf.ask("/large") == await slow.ask("/large") == "200 OK"
    for _ in range(150):
        await asyncio.wait_for(slow.reader.readexactly(PIECE), PATIENCE)
        await place.later(4)
    await place.later(400)
    await place.later(400)
    assert len(await deaf.ended()) < 200 * PIECE


def test_who_is_silent_before_tls_takes_no_place(tmp_path: Path) -> None:
    for name, text in zip(("certificate", "key"), make_certificate("localhost", datetime.now(UTC)), strict=True):
        (tmp_path / name).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")

    async def test(place: Site) -> None:
        silent = [await place.client() for _ in range(3 * LIMIT)]
        assert await (await place.client(tls=True)).ask("/") == "200 OK"
        for one in silent[: 2 * LIMIT]:
            assert await one.ended() == b""
        await place.later(FIRST_WORDS + 1)
        assert await silent[-1].ended() == b""

    run(test, context)


async def websocket(place: Site, path: str) -> Client:
    head = f"GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    return await place.client(f"{head}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())


def message(size: int, whole: bool = True) -> bytes:
    """A binary message as a browser sends it (RFC 6455, 5.2), or all of it but its last byte."""
    return b"\x82\xff" + size.to_bytes(8, "big") + bytes(4 + size - (not whole))


async def pushed(client: Client, data: bytes) -> None:
    with suppress(ConnectionError):
        await client.say(data)


@served
async def test_messages_that_do_not_end_or_are_not_taken_have_room_for_each_user(place: Site) -> None:
    for path, data in (("/mallory", message(10 * PIECE, whole=False)), ("/eve/idle", message(9 * PIECE))):
        first, second = [await websocket(place, path) for _ in range(2)]
        for one in (first, second):
            await one.hear(b"\r\n\r\n")
        await pushed(first, data)
        await pushed(second, data)
        # One of them is cut off, whichever came to the end of the room.
        ended, waiting = await asyncio.wait(
            [asyncio.create_task(one.ended()) for one in (first, second)], return_when=asyncio.FIRST_COMPLETED
        )
        assert (len(ended), len(waiting)) == (1, 1)
        other = await websocket(place, "/alice")
        await other.hear(b"\r\n\r\n")
        await other.say(message(10 * PIECE))
        await other.hear(b"taken")
        first.writer.close()
        second.writer.close()
        for one in waiting:
            one.cancel()
    busy = await websocket(place, "/mallory")
    await busy.hear(b"\r\n\r\n")
    for _ in range(100):  # what was taken counts no more
        await busy.say(message(5 * PIECE))
        await busy.hear(b"taken")


@served
async def test_who_is_not_known_yet_sends_no_message(place: Site) -> None:
    stranger = await websocket(place, "/")
    await pushed(stranger, message(10 * PIECE, whole=False))
    await stranger.ended()
