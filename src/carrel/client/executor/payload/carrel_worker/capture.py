"""What a call prints: by Python, by libraries in C, by processes that it starts. It goes on to the worker's own log, too.

A process of its own takes it (`carrel_worker.supervisor`): a thread could not read while a library holds the interpreter's lock,
and would end with a process that crashes.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

from carrel_worker.frames import Decoder, encode

#: Bytes of each stream that are kept of a call: its end.
KEPT = 256 * 1024
_PIECE = 65536
#: Characters of it that are part of a message.
_WORDS = 2000


class Stream:
    """The supervisor's end of the pipe that stands in the place of one descriptor of the worker."""

    def __init__(self, name: str, descriptor: int, told: Callable[[str, int, bytes], None]) -> None:
        self.name = name
        self.read, self.write = os.pipe()
        self._log = descriptor
        self._told = told
        self._kept = bytearray()
        self._size = 0

    @property
    def end(self) -> tuple[int, bytes]:
        """How many bytes the call has printed before its end, and that end."""
        kept = bytes(self._kept[-KEPT:])
        return self._size - len(kept), kept

    def finish(self) -> bytes:
        """The frame by which the lab is told of it; b"" when nothing was printed. What comes from now on is the next call's."""
        before, kept = self.end
        self._kept, self._size = bytearray(), 0
        return encode({"type": self.name}, pack(">Q", before + len(kept)) + kept) if kept else b""

    def drain(self) -> None:
        """Take all that was written by now, and no more: another process may never stop writing."""
        size = array.array("i", [0])
        fcntl.ioctl(self.read, termios.FIONREAD, size)
        left = size[0]
        while left > 0:
            data = os.read(self.read, min(left, _PIECE))
            left -= len(data)
            self._told(self.name, self._size, data)
            self._size += len(data)
            self._kept += data
            if len(self._kept) > 2 * KEPT:
                del self._kept[:-KEPT]
            with contextlib.suppress(OSError):  # the log is full: the call goes on
                _write(self._log, data)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Output:
    """The worker's side: its descriptors, and what it tells its supervisor. Any thread may use it."""

    def __init__(self, channel: socket.socket, pipes: list[int]) -> None:
        self._channel = channel
        self._pipes = pipes
        self._pid = os.getpid()
        self._decoder = Decoder()
        self._guard = threading.Lock()
        self._put_back()
        _by_lines()

    def start(self, call: int, limit: float | None = None, *, first: bool = True) -> None:
        """What is printed after the end of the last call is this one's, which may take `limit` seconds.

        `first`: the lab knows how all before it ended.
        """
        self._put_back()
        self._tell({"type": "start", "call": call, "limit": limit, "first": first}, answer=False)

    def finish(self, ending: bytes = b"") -> bytes:
        """Frames with the end of what the call has printed: all that this process has written by now is in it.

        `ending`: what the lab is to be told, which it is although this process dies before.
        """
        flush()
        return self._tell({"type": "finish"}, ending)

    def show(self, number: int, data: bytes) -> None:
        """Pass on what the call shows, between what it has printed by now and what it will print."""
        flush()
        self._tell({"type": "show", "number": number}, data)

    def flush(self) -> None:
        """Return when the lab has what was printed and shown."""
        flush()
        self._tell({"type": "flush"})

    def over(self) -> None:
        """No call follows: this process ends, or is ended."""
        self._tell({"type": "over"})

    def _put_back(self) -> None:
        """A call may have closed what the next one prints to."""
        for descriptor, pipe in zip((1, 2), self._pipes):
            os.dup2(pipe, descriptor)
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, open(descriptor, "w", encoding="utf-8", errors="backslashreplace", closefd=False))

    def _tell(self, header: dict[str, Any], data: bytes = b"", *, answer: bool = True) -> bytes:
        """Say it, and return the body of the answer: what was printed before is taken by then."""
        if os.getpid() != self._pid:
            return b""  # a process that a call has forked: what it prints is taken, and nothing else
        found, answered = b"", not answer
        with _uninterrupted(), self._guard:
            self._channel.sendall(encode(header, data))
            while not answered:
                came = self._channel.recv(_PIECE)
                if not came:
                    raise OSError("The process that takes what calls print is gone.")
                for kind, value in self._decoder.feed(came):
                    found += value if kind == "data" else b""
                    answered = kind == "end"
        return found


def over_limit(limit: float, printed: bytes) -> str:
    """Why a call was stopped, and what it printed last: of the frames of `Output.finish`."""
    streams: list[bytes] = []
    for kind, value in Decoder().feed(printed):
        if kind == "frame":
            streams.append(b"")
        elif kind == "data":
            streams[-1] += value
    said = "".join(one[8:].decode("utf-8", "replace") for one in streams).strip()[-_WORDS:]
    words = "It took longer than its limit of {:g} s, and was stopped.".format(limit)
    return words + (" It printed last:\n" + said if said else "")


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """KeyboardInterrupt comes before or after: half a message would confuse both sides."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def flush() -> None:
    """Hand on what the buffers of Python and of C hold."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a call may have put anything in their place
            stream.flush()
    if _LIBC is not None:
        _LIBC.fflush(_STDOUT)


def _by_lines() -> None:
    """Libraries in C print a line when it is whole, and not when 4 KiB have come together: it is seen, and outlives a crash."""
    if _LIBC is not None:
        _LIBC.setvbuf(_STDOUT, None, 1, 0)  # _IOLBF


try:
    import ctypes

    _LIBC: Any = ctypes.CDLL(None)
    _STDOUT = ctypes.c_void_p.in_dll(_LIBC, "stdout")
except (ImportError, OSError, ValueError):  # a Python without ctypes, another libc
    _LIBC = None
