"""One client's socket: lines in, lines out, and nobody is ever waited for."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from carrel.broker.loop import Loop
from carrel.leases.protocol import LONGEST

#: Bytes that wait for a client that does not read; with more it is dropped.
BACKLOG = 4 * 1024**2
_PIECE = 65536
#: Most descriptors that come with a message (SCM_MAX_FD is 253), and that wait to be asked for.
MOST_FILES = 250


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
        #: What was not sent yet: bytes, and copies of the descriptors that go with the first of them.
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._waiting = 0
        self._writing = False
        self._files: list[int] = []
        self.open = True
        stream.setblocking(False)
        loop.watch(stream.fileno(), self._ready)

    def send(self, line: bytes, files: Sequence[int] = ()) -> None:
        """Send a line, now or as soon as the client reads; one that does not read is dropped.

        `files`: descriptors that go with it (SCM_RIGHTS, unix(7)); they stay the caller's.
        """
        if not self.open:
            return
        if not self._outgoing:
            try:
                sent = self._send(line, files)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the end is seen when reading, in its turn
            line, files = line[sent:], () if sent else files
        if line:
            self._outgoing.append((line, tuple(os.dup(file) for file in files)))
            self._waiting += len(line)
            if self._waiting > BACKLOG:
                self.end(closed=False)
            elif not self._writing:
                self._writing = True
                self._loop.watch(self._socket.fileno(), self._ready, write=True)

    def files(self) -> list[int]:
        """The descriptors that came until now; they are the caller's, who closes them."""
        found, self._files = self._files, []
        return found

    def drop_files(self) -> None:
        """Close the descriptors that came until now."""
        _close(self.files())

    def _send(self, data: bytes, files: Sequence[int]) -> int:
        if not files:
            return self._socket.send(data)
        return self._socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])

    def end(self, *, closed: bool) -> None:
        """Close it. What was not sent is lost."""
        if self.open:
            self.open = False
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            for _data, files in self._outgoing:
                _close(files)
            self._outgoing.clear()
            _close(self.files())
            self._on_end(self, closed)

    def _ready(self) -> None:
        if self._outgoing:
            self._flush()
        if self.open:
            self._read()

    def _flush(self) -> None:
        with suppress(OSError):
            while self._outgoing:
                data, files = self._outgoing[0]
                sent = self._send(data, files)
                self._waiting -= sent
                _close(files)  # they went with the first byte
                self._outgoing[0] = (data[sent:], ())
                if sent == len(data):
                    self._outgoing.popleft()
        if not self._outgoing:
            self._writing = False
            self._loop.watch(self._socket.fileno(), self._ready)

    def _read(self) -> None:
        try:
            data = self._receive()
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

    def _receive(self) -> bytes:
        data, ancillary, _flags, _address = self._socket.recvmsg(
            _PIECE, socket.CMSG_SPACE(MOST_FILES * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                self._files += found
        _close(self._files[MOST_FILES:])
        del self._files[MOST_FILES:]
        return data


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
