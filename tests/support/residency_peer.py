"""The broker's side of a conversation with the residency library, for tests and benchmarks: they say what it gets.

`carrel.node.leases.protocol`, "A process with the residency library".
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carrel.core.transport.channel import MOST_FILES, Channel, peer_credentials
from carrel.core.transport.framing import Ended, Lines, object_of
from carrel.node.leases.protocol import LONGEST, encode

#: Seconds after which something that is waited for will never happen.
LIMIT = 120.0


class Peer:
    """A process' connection, as the broker sees it."""

    def __init__(self, link: socket.socket) -> None:
        self._channel = Channel(Lines(LONGEST), link, most_files=MOST_FILES)
        self.files: list[int] = []
        self.hello: dict[str, Any] = {}
        self._fence = 0
        self._order = 0
        self.pid = peer_credentials(link).pid

    def receive(self, seconds: float = LIMIT) -> dict[str, Any] | None:
        """The next message, or None when none came in that time; raises EOFError when the process closed its end."""
        try:
            line = self._channel.receive(seconds)
        except Ended as error:
            raise EOFError(str(error)) from error
        self.files += self._channel.files()
        return None if line is None else object_of(line)

    def expect(self, op: str, **fields: Any) -> dict[str, Any]:
        """The next message with this op and these fields; progress and cancelled requests are passed over."""
        while True:
            message = self.receive()
            assert message is not None, f"no {op} came"
            if message["op"] == op and all(message.get(name) == value for name, value in fields.items()):
                return message
            assert message["op"] in ("progress", "cancel", "release", "acquire"), f"{message} instead of {op}"

    def send(self, op: str, files: Sequence[int] = (), **fields: Any) -> None:
        """Say something, with descriptors."""
        self.say(encode(op, **fields), files)

    def say(self, data: bytes, files: Sequence[int] = ()) -> None:
        """Send these bytes, whether they are a message or not."""
        self._channel.send(data, files)
        self._channel.flush(LIMIT)

    def welcome(self, **fields: Any) -> dict[str, Any]:
        """Answer its hello, which is returned."""
        hello = self.receive()
        assert hello is not None
        assert hello["op"] == "hello"
        self.hello = hello
        self.send("welcome", v=1, **fields)
        return hello

    def grant(self, **fields: Any) -> str:
        """Answer the next request with a lease."""
        request = self.expect("acquire")
        self._fence += 1
        lease = f"lease-{self._fence}"
        self.send("granted", request=request["request"], lease=lease, fence=self._fence, **fields)
        return lease

    def ask(self, op: str, answer: str, **fields: Any) -> dict[str, Any]:
        """Give an order and return its answer."""
        return self.finish(answer, self.begin(op, **fields))

    def begin(self, op: str, **fields: Any) -> int:
        """Give an order; its number is for `finish`."""
        self._order += 1
        self.send(op, id=self._order, **fields)
        return self._order

    def finish(self, answer: str, number: int) -> dict[str, Any]:
        """The answer to an order."""
        return self.expect(answer, id=number)

    def pause(self, timeout: float = LIMIT) -> dict[str, Any]:
        """Close the gate, and have all work end."""
        return self.ask("pause", "quiet", timeout=timeout)

    def out(self, **fields: Any) -> dict[str, Any]:
        """Have its memory leave the device."""
        return self.ask("out", "moved", **fields)

    def back(self, patience: float = LIMIT) -> dict[str, Any]:
        """Have its memory come back."""
        return self.ask("in", "moved", patience=patience)

    def go(self) -> dict[str, Any]:
        """Open the gate with a new lease."""
        self._fence += 1
        return self.ask("go", "going", lease=f"lease-{self._fence}", fence=self._fence)

    def give(self, *sizes: int, first: int = 1, contents: bytes = b"") -> dict[str, Any]:
        """Give pieces of a pool, in files in memory, with these `contents` from the first one's beginning on."""
        files = [os.memfd_create("piece") for _ in sizes]
        for file, size in zip(files, sizes, strict=True):
            os.ftruncate(file, size)
            os.pwrite(file, contents[:size], 0)
            contents = contents[size:]
        answer = self.ask("pieces", "pieces", files=files, pieces=list(range(first, first + len(sizes))), sizes=list(sizes))
        for file in files:
            os.close(file)
        return answer

    def take(self, *pieces: int, **fields: Any) -> dict[str, Any]:
        """Have it let go of pieces."""
        return self.ask("pieces_back", "pieces_back", pieces=list(pieces), **fields)

    def filled(self, size: int, *pieces: int) -> dict[str, Any]:
        """Say that so many bytes of its state are in its pieces again."""
        return self.ask("filled", "filled", pieces=list(pieces), bytes=size)

    def close(self) -> None:
        """Close the connection, and what came with it."""
        for file in self.files:
            os.close(file)
        self.files.clear()
        self._channel.close()


class Server:
    """Where processes connect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._peers: list[Peer] = []
        self._socket: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Be there, again after `close`."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self.path))
        self._socket.listen(64)
        self._socket.settimeout(LIMIT)

    def accept(self, **welcome: Any) -> Peer:
        """The next connection, greeted."""
        assert self._socket is not None
        peer = Peer(self._socket.accept()[0])
        self._peers.append(peer)
        peer.welcome(**welcome)
        return peer

    def waits(self) -> bool:
        """True if somebody has connected whom nobody has accepted."""
        assert self._socket is not None
        return bool(select.select([self._socket], [], [], 0)[0])

    def close(self) -> None:
        """As if the broker were killed."""
        for peer in self._peers:
            peer.close()
        self._peers.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self.path.unlink()
