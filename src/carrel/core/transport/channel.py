"""A connection that carries whole messages, over a socket or a pair of pipes.

A program that has nothing else to do waits with `receive`; one with a reactor is called back after `attach`. Sending never waits
(`send`), unless that is asked for (`flush`).
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar

from carrel.core.transport.framing import Closed, Ended, Framing, Torn
from carrel.core.transport.reactor import Reactor

T = TypeVar("T")

_PIECE = 65536
#: Most descriptors that a channel takes at once (SCM_MAX_FD is 253, unix(7)).
MOST_FILES = 250
#: Bytes that wait for somebody who does not read.
BACKLOG = 4 * 1024**2
#: struct ucred of <sys/socket.h>.
_CREDENTIALS = struct.Struct("iII")


class Dropped(Ended):
    """This side ended the connection: it has no more to say, or the other side did not read what waits for it."""


class Silent(Exception):
    """The other side did not read in time."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is at the other end of a unix socket, as it was when the connection was made."""

    pid: int
    uid: int
    gid: int


def peer_credentials(stream: socket.socket) -> Credentials:
    """Return what the kernel says of the other end (SO_PEERCRED, unix(7)), which that cannot change. Raises `OSError`."""
    return Credentials(*_CREDENTIALS.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


class Channel(Generic[T]):
    """One end of a connection, for one thread at a time."""

    def __init__(
        self,
        framing: Framing[T],
        reading: socket.socket | IO[bytes],
        writing: IO[bytes] | None = None,
        *,
        most_files: int = 0,
        backlog: int = BACKLOG,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """The channel owns what it reads and writes, which block no longer.

        `writing`: where `reading` is a pipe, the other one. `most_files`: descriptors that wait to be asked for at most; 0: none
        can be received. `backlog`: bytes that wait to be sent at most; with more of them the channel ends. `monotonic`: seconds.
        """
        self._framing = framing
        self._reading, self._writing = reading, writing or reading
        self._most_files = most_files
        self._backlog = backlog
        self._monotonic = monotonic
        self._messages: deque[T] = deque()
        #: What was not sent yet: bytes, and copies of the descriptors that go with the first of them.
        self._outgoing: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._broken = False
        self._files: list[int] = []
        self._reactor: Reactor | None = None
        self._watched = False
        self._resting = False
        self._on_message: Callable[[Channel[T], T], None] = _nothing
        self._on_end: Callable[[Channel[T], Ended], None] = _nothing
        self._on_sent: Callable[[], None] = _nothing
        self._over: Ended | None = None
        #: Bytes that are not sent yet.
        self.waiting = 0
        #: False once this side has closed it.
        self.open = True
        for end in (self._reading, self._writing):
            if isinstance(end, socket.socket):
                end.setblocking(False)
            else:
                os.set_blocking(end.fileno(), False)

    def fileno(self) -> int:
        """Readable when something has come that was not read yet."""
        return self._reading.fileno()

    def attach(
        self,
        reactor: Reactor,
        *,
        on_message: Callable[[Channel[T], T], None],
        on_end: Callable[[Channel[T], Ended], None],
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Call back for each message from now on, once for the end, and with `on_sent` when nothing waits to be sent any more.

        At the time of `on_end` it is not closed yet, so that last words can be sent; they are lost where they would have to wait.
        """
        self._reactor = reactor
        self._on_message, self._on_end, self._on_sent = on_message, on_end, on_sent
        reactor.watch(self._reading, self._ready)

    def rest(self, seconds: float) -> None:
        """Read nothing for so many seconds: the other side has to wait. For an attached pair of pipes."""
        assert self._reactor is not None
        assert self._writing is not self._reading
        if not self._resting:
            self._resting = True
            self._reactor.unwatch(self._reading)
            self._reactor.later(seconds, self._read_again)

    def _read_again(self) -> None:
        self._resting = False
        if self.open and self._reactor is not None:
            self._reactor.watch(self._reading, self._ready)

    def end(self, why: Ended) -> None:
        """Call `on_end`, and close it. What was not sent is lost; again is harmless."""
        if self.open:
            self.open = False
            self._on_end(self, why)
            for end in {self._reading, self._writing}:
                if self._reactor is not None:
                    self._reactor.unwatch(end)
                with suppress(OSError):
                    if isinstance(end, socket.socket):
                        end.shutdown(socket.SHUT_RDWR)  # a child that was forked meanwhile has it, too
                with suppress(OSError):
                    end.close()
            self._forget_waiting()
            self._broken, self._over = True, why
            _close(self.files())

    def close(self) -> None:
        """Close it without a callback."""
        self._on_end = _nothing
        self.end(Dropped("it was closed here"))

    # --- sending ------------------------------------------------------------------------------------------------------------

    def send(self, data: bytes | memoryview, files: Sequence[int] = ()) -> None:
        """Send a message, now or as soon as the other side reads. If that is gone nothing happens: receiving shows the end.

        `files`: descriptors that go with its first byte (SCM_RIGHTS, unix(7)); they stay the caller's.
        """
        if self._broken:
            return
        if not self._outgoing:
            try:
                sent = self._write(data, files)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._broken = True
                return
            if sent == len(data):
                return
            data, files = memoryview(data)[sent:], () if sent else files
        if self.open:
            self._outgoing.append((memoryview(data), tuple(os.dup(file) for file in files)))
            self.waiting += len(data)
            if self.waiting > self._backlog:
                self.end(Dropped(f"the other side has not read {self.waiting} bytes"))
            else:
                self._watch()

    def flush(self, seconds: float) -> None:
        """Wait until everything is sent.

        Raises `Silent` when the other side does not read it in so many seconds, `Closed` when it is gone.
        """
        deadline = self._monotonic() + seconds
        while self._outgoing:
            poll = select.poll()  # not select(2): a process may have more than a thousand descriptors
            poll.register(self._writing, select.POLLOUT)
            if not poll.poll(1000 * max(0.0, deadline - self._monotonic())):
                raise Silent(f"the other side did not read within {seconds:g} s")
            self._send_waiting()
        if self._broken:
            raise Closed("the other side is gone")

    def _write(self, data: bytes | memoryview, files: Sequence[int]) -> int:
        if files:
            assert isinstance(self._writing, socket.socket)
            return socket.send_fds(self._writing, [data], files)
        return os.write(self._writing.fileno(), data)

    def _send_waiting(self) -> None:
        try:
            while self._outgoing:
                data, files = self._outgoing[0]
                sent = self._write(data, files)
                _close(files)  # they went with the first byte
                self.waiting -= sent
                self._outgoing[0] = (data[sent:], ())
                if sent == len(data):
                    self._outgoing.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._broken = True
            self._forget_waiting()
        self._watch()
        if not self._broken:
            self._on_sent()

    def _forget_waiting(self) -> None:
        for _data, files in self._outgoing:
            _close(files)
        self._outgoing.clear()
        self.waiting = 0

    def _watch(self) -> None:
        """Be called when more can be sent, while something waits."""
        if self._reactor is not None and self._watched != bool(self._outgoing):
            self._watched = bool(self._outgoing)
            if self._writing is self._reading:
                self._reactor.watch(self._reading, self._ready, write=self._watched)
            else:
                self._reactor.watch(self._writing, self._send_waiting, read=False, write=self._watched)

    # --- receiving ----------------------------------------------------------------------------------------------------------

    def receive(self, seconds: float) -> T | None:
        """Return the next message, or None when none came in so many seconds.

        After the last message it raises why there are no more: `Closed`, `Torn` or `TooLong` (`carrel.core.transport.framing`).
        """
        deadline = self._monotonic() + seconds
        while not self._messages:
            if self._over is not None:
                raise self._over
            poll = select.poll()
            poll.register(self._reading, select.POLLIN)
            if not poll.poll(1000 * max(0.0, deadline - self._monotonic())):
                return None
            self._read()
        return self._messages.popleft()

    def files(self) -> list[int]:
        """The descriptors that have come until now; they are the caller's, who closes them."""
        found, self._files = self._files, []
        return found

    def refuse_files(self) -> None:
        """Close the descriptors that have come until now; what comes later is not received."""
        self._most_files = 0
        _close(self.files())

    def _ready(self) -> None:
        if self._outgoing and self._writing is self._reading:
            self._send_waiting()
        if self.open:
            self._read()
        while self._messages and self.open:
            self._on_message(self, self._messages.popleft())
        if self._over is not None:
            self.end(self._over)

    def _read(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            self._messages.extend(self._framing.feed(data))
            if not data:
                self._over = (
                    Torn("the other side ended in the middle of a message")
                    if self._framing.midway
                    else Closed("the other side closed the connection")
                )
        except Ended as error:
            self._over = error

    def _receive(self) -> bytes:
        if not self._most_files:
            return os.read(self._reading.fileno(), _PIECE)
        assert isinstance(self._reading, socket.socket)
        data, files, _flags, _address = socket.recv_fds(self._reading, _PIECE, self._most_files, socket.MSG_CMSG_CLOEXEC)
        self._files += files
        _close(self._files[self._most_files :])
        del self._files[self._most_files :]
        return data


def _nothing(*_about: Any) -> None:
    pass


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
