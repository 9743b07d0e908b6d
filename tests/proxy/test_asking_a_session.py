"""The lab asks a session's server, in whose place its user has put another program."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from session_rig import short_directory

from carrel.core.domain.errors import Unavailable
from carrel.notebooks.address import UnixAddress
from carrel.notebooks.proxy import ask
from carrel.testing.waiting import PATIENCE

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def a_server(serve: Callable[[socket.socket], None]) -> Iterator[UnixAddress]:
    """`serve` gets each connection once something was asked on it."""

    def accept(listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65_536)
                    serve(connection)

    with short_directory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "s"))
        listener.listen(10)
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        yield UnixAddress(str(place / "s"))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def asked(address: UnixAddress, seconds: float = PATIENCE) -> tuple[int, dict[str, object]]:
    return ask(address, "GET", "/carrel/activity", headers={}, seconds=seconds)


@pytest.mark.gate
@pytest.mark.parametrize("chunked", [True, False])
def test_an_answer_without_end_is_not_read(chunked: bool) -> None:
    sent = 0

    def flood(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(
            _HEAD + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: 100000000000\r\n\r\n")
        )
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        while True:
            sent += connection.send(piece)

    with a_server(flood) as address, pytest.raises(Unavailable, match="DecodingError"):
        asked(address)
    assert sent < 4 * 1024**2


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nX: ", _HEAD + b"Content-Length: 1000\r\n\r\n"])
def test_an_answer_that_comes_byte_by_byte_has_an_end(beginning: bytes) -> None:
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(beginning)
        while not over.wait(0.05):
            connection.sendall(b" ")

    with a_server(drip) as address:
        with pytest.raises(Unavailable, match="TimeoutError|RemoteProtocolError"):
            asked(address, seconds=0.5)
        over.set()


@pytest.mark.parametrize("body", [b"", b"5", b"[]", b"{", b"\xff", b"[" * 60_000, b"null"])
def test_what_is_no_object_is_an_empty_one(body: bytes) -> None:
    with a_server(lambda connection: connection.sendall(_HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))) as address:
        assert asked(address) == (200, {})
