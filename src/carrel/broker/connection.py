"""One client's socket: lines in, lines out, and nobody is ever waited for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from carrel.broker.loop import Loop
from carrel.leases.protocol import LONGEST

#: Bytes that wait for a client that does not read; with more it is dropped.
BACKLOG = 4 * 1024**2
_PIECE = 65536


class Connection:
    """Calls back for each line, and once when the client is gone.

    `closed` is True when the client closed it, False when the broker dropped it: only the first says that the client is done.
    """

    def __init__(
        self,
        loop: Loop,
        stream: socket.socket,
        *,
        on_line: Callable[[Connection, bytes], None],
        on_end: Callable[[Connection, bool], None],
    ) -> None:
        self._loop = loop
        self._socket = stream
        self._on_line = on_line
        self._on_end = on_end
        self._incoming = b""
        self._outgoing = bytearray()
        self._writing = False
        self.open = True
        stream.setblocking(False)
        loop.watch(stream.fileno(), self._ready)

    def send(self, line: bytes) -> None:
        """Send a line, now or as soon as the client reads; one that does not read is dropped."""
        if not self.open:
            return
        if not self._outgoing:
            try:
                sent = self._socket.send(line)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the end is seen when reading, in its turn
            line = line[sent:]
        if line:
            self._outgoing += line
            if len(self._outgoing) > BACKLOG:
                self.end(closed=False)
            elif not self._writing:
                self._writing = True
                self._loop.watch(self._socket.fileno(), self._ready, write=True)

    def end(self, *, closed: bool) -> None:
        """Close it. What was not sent is lost."""
        if self.open:
            self.open = False
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._on_end(self, closed)

    def _ready(self) -> None:
        if self._outgoing:
            self._flush()
        if self.open:
            self._read()

    def _flush(self) -> None:
        with suppress(OSError):
            sent = self._socket.send(self._outgoing)
            del self._outgoing[:sent]
        if not self._outgoing:
            self._writing = False
            self._loop.watch(self._socket.fileno(), self._ready)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end(closed=True)
            return
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        for line in lines:
            if self.open and line:
                self._on_line(self, line)
        if self.open and len(self._incoming) > LONGEST:
            self._on_line(self, self._incoming)  # which says that it is too long
            self.end(closed=True)
