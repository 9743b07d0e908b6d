"""Connections that say nothing, or say it slowly: the lab and its broker answer everybody else."""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from carrel import Client
from carrel.lab.server.connections import patient_protocol
from carrel.testing.lab_process import LabProcess, start_lab
from carrel.testing.waiting import PATIENCE, wait_until


async def echo(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Answers with the size of the body."""
    size, more = 0, scope["type"] == "http"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]})
    await send({"type": "http.response.body", "body": str(size).encode()})


class Served:
    """A server in this process that has few places and little patience, and talks to itself."""

    def __init__(self, most: int = 1000, head: float = 60, body: float = 60) -> None:
        protocol = patient_protocol(most, head=head, body=body)
        config = uvicorn.Config(echo, http=protocol, log_config=None, lifespan="off", port=0)  # type: ignore[arg-type]
        self.server = uvicorn.Server(config)

    async def __aenter__(self) -> Served:
        self.writers: list[asyncio.StreamWriter] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.task = asyncio.create_task(self.server.serve([self.listener]))
        while not self.server.started:
            await asyncio.sleep(0)
        self.port = int(self.listener.getsockname()[1])
        return self

    async def __aexit__(self, *_why: object) -> None:
        for writer in self.writers:
            writer.close()
        self.server.should_exit = self.server.force_exit = True
        await self.task
        self.listener.close()


async def opened(server: Served, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    server.writers.append(writer)
    return reader, writer


async def is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), PATIENCE) == b""
    except ConnectionError:
        return True


def test_heads_and_bodies_that_do_not_come_end_and_slow_ones_do_not() -> None:
    async def main() -> None:
        async with Served(head=0.3, body=0.3) as server:
            begun = [b"", b"GET / HTTP/1.1\r\nHost: a\r\n", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab"]
            begun += [b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"]
            begun += [b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT"]  # the second head never ends
            ended = [await opened(server, data) for data in begun]
            reader, writer = await opened(server, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n")
            for _ in range(10):  # ten times as long as it may say nothing
                await asyncio.sleep(0.1)
                writer.write(b"x" * 5000)
            assert (await asyncio.wait_for(reader.readuntil(b"50000"), PATIENCE)).startswith(b"HTTP/1.1 200")
            for stream, _ in ended[:-1]:
                assert await is_ended(stream)
            last = await asyncio.wait_for(ended[-1][0].read(), PATIENCE)
            assert last.count(b"HTTP/1.1 200") == 1

    asyncio.run(main())


def test_who_says_nothing_gives_its_place_to_who_asks() -> None:
    async def main() -> None:
        async with Served(most=20) as server:
            kept = await opened(server, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n")  # a request under way
            silent = [await opened(server) for _ in range(100)]
            asked = await opened(server, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await asyncio.wait_for(asked[0].readuntil(b"\r\n"), PATIENCE)).startswith(b"HTTP/1.1 200")
            assert await is_ended(silent[0][0])
            kept[1].write(b"x")
            assert (await asyncio.wait_for(kept[0].readuntil(b"\r\n"), PATIENCE)).startswith(b"HTTP/1.1 200")

    asyncio.run(main())


@pytest.fixture
def small_lab(tmp_path: Path) -> Iterator[LabProcess]:
    """A lab whose process may have few descriptors."""
    lab = start_lab(tmp_path / "lab", "--cpus", "2", python=["prlimit", "--nofile=512:512", sys.executable])
    yield lab
    lab.end_jobs()
    lab.stop()


@pytest.mark.gate
def test_a_lab_answers_while_others_hold_more_connections_than_it_has_descriptors(small_lab: LabProcess, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this process may have too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    (tmp_path / "work.sh").write_text("echo done\n")
    host, port = small_lab.url.removeprefix("http://").split(":")
    try:
        with ExitStack() as stack, Client(url=small_lab.url, token=small_lab.token) as client:
            for number in range(1500):
                stream = stack.enter_context(closing(socket.create_connection((host, int(port)))))
                stream.sendall(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
            began = time.monotonic()
            assert httpx.get(f"{small_lab.url}/health", timeout=PATIENCE).status_code == 200
            print(f"/health took {time.monotonic() - began:.3f} s")
            job = client.submit_project(tmp_path / "work.sh")
            assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
        wait_until(lambda: httpx.get(f"{small_lab.url}/health").status_code == 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
