"""What a call prints: by Python, by libraries in C, by processes that it starts. It goes on to the worker's own log, too."""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable

#: Bytes of each stream that are kept of a call: its end.
KEPT = 256 * 1024
_PIECE = 65536


class Stream:
    """Stands in the place of one file descriptor for the life of the process."""

    def __init__(self, name: str, descriptor: int, told: Callable[[str, int, bytes], None]) -> None:
        self.name = name
        self._told = told
        self._original = os.dup(descriptor)
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        os.dup2(write, descriptor)
        os.close(write)
        self._guard = threading.Lock()
        self._kept = bytearray()
        self._size = 0
        self._thread = threading.Thread(target=self._follow, name="capture of " + name, daemon=True)
        self._thread.start()

    def start(self) -> None:
        """What comes from now on is the next call's."""
        self.drain()
        with self._guard:
            self._kept, self._size = bytearray(), 0

    def finish(self) -> bytes:
        """Return how many bytes the call has printed, in eight bytes, and the end of them; b"" when it has printed nothing.

        All that this process has written by now is in it.
        """
        self.drain()
        with self._guard:
            return struct.pack(">Q", self._size) + bytes(self._kept[-KEPT:]) if self._size else b""

    def _follow(self) -> None:
        import select

        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            poll.poll()
            self.drain()

    def drain(self) -> None:
        """Take all that was written by now."""
        with self._guard:
            while True:
                try:
                    data = os.read(self._read, _PIECE)
                except BlockingIOError:
                    return
                if not data:
                    return
                self._told(self.name, self._size, data)
                self._size += len(data)
                self._kept += data
                if len(self._kept) > 2 * KEPT:
                    del self._kept[:-KEPT]
                _write(self._original, data)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def flush() -> None:
    """Hand on what Python's own buffers hold."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # noqa: PERF203 - two streams, each by itself
            pass
