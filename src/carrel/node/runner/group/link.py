"""What leader and agents speak through: whole messages over TCP, between two who know the same secret."""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

#: Seconds that somebody who has connected may take to prove who it is.
_PROOF = 30
#: Bytes of one message, at the most.
LONGEST = 1 << 20
#: Seconds until a node that is silent is asked, between questions, and unanswered questions until it is lost.
_IDLE, _PAUSE, _TIMES = 15, 5, 3
_OUTPUT, _WORDS = b"o", b"w"


class Link:
    """One end of a connection. One thread may send while another receives. Everything raises `OSError` once it is broken."""

    def __init__(self, sock: socket.socket, secret: bytes, *, leader: bool) -> None:
        """Prove to each other who is there; raise `OSError` or an error of multiprocessing's for a stranger."""
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _PROOF, 0))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, _IDLE), (socket.TCP_KEEPINTVL, _PAUSE), (socket.TCP_KEEPCNT, _TIMES)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = sock
        self._connection: Connection[Any, Any] = Connection(os.dup(sock.fileno()))
        for step in (deliver_challenge, answer_challenge) if leader else (answer_challenge, deliver_challenge):
            step(self._connection, secret)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

    def fileno(self) -> int:
        """For poll(2)."""
        return self._socket.fileno()

    def say(self, what: str, **fields: Any) -> None:
        """Send words."""
        self._connection.send_bytes(_WORDS + json.dumps({"what": what, **fields}).encode())

    def write(self, output: bytes) -> None:
        """Send output of processes."""
        for start in range(0, len(output), LONGEST // 2):
            self._connection.send_bytes(_OUTPUT + output[start : start + LONGEST // 2])

    def receive(self) -> dict[str, Any] | bytes:
        """Wait for a message: words, or output. Raises `EOFError` when the other side has closed."""
        message = self._connection.recv_bytes(LONGEST)
        if message[:1] == _OUTPUT:
            return message[1:]
        words: dict[str, Any] = json.loads(message[1:])
        return words

    def close(self) -> None:
        """Break the connection; the other side sees it at once, and so does a thread that receives."""
        with suppress(OSError):  # it may be broken already
            self._socket.shutdown(socket.SHUT_RDWR)


def listen(*, everywhere: bool) -> socket.socket:
    """Return a socket that listens on a free port: on this machine only, or on all its addresses."""
    if not everywhere:
        return socket.create_server(("127.0.0.1", 0))
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:  # no IPv6 on this machine after all
            pass
    return socket.create_server(("", 0))
