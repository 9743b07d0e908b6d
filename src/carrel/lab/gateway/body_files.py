"""Large bodies as open files: a program on the lab's machine writes and reads them itself, without HTTP in between.

The API gives a ticket for one file and one use. Who shows it at a Unix socket gets a descriptor of that file, and the lab's proof
that it is the lab. Nobody names a path: a new file has no name until the lab takes it, so a killed program leaves nothing.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from anyio import to_thread

from carrel.core.domain.call import Body
from carrel.core.domain.errors import Conflict, Invalid, StorageFull
from carrel.core.spool.disk import disk_of, full_at
from carrel.core.transport.channel import Channel
from carrel.core.transport.framing import Ended, Garbled, Lines, object_line, object_of
from carrel.core.transport.reactor import Reactor
from carrel.lab.gateway.call_bodies import Frame

_log = logging.getLogger(__name__)
#: Smallest body that is worth the way; a smaller one is faster by HTTP.
LEAST = 1024 * 1024
#: Seconds in which a ticket has to be shown, and in which who connects has to show one.
_UNUSED, _SILENT = 60.0, 10.0
#: Connections at once, of all and of those that have shown no ticket yet; files of one user.
_CONNECTIONS, _STRANGERS, _OF_ONE = 1024, 64, 64
_LONGEST = 1024
#: Seconds for a descriptor that a process has for a moment, because it was forked just now.
_FORKED = 0.5


@dataclass(eq=False, slots=True, kw_only=True)
class _Ticket:
    owner: str
    proof: str
    size: int
    until: float
    #: What it is for: to read this file; None: to write a new one.
    path: str | None
    #: Who has shown it.
    channel: Channel[bytes] | None = None
    #: The new file, for reading.
    file: int | None = None


class BodyFiles:
    """Tickets, and the thread that takes them. Thread-safe."""

    def __init__(self, directory: Path, place: Path | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`directory`: where bodies lie; `place`: the socket. None: there is none, and bodies go through HTTP."""
        self._directory = directory
        self._place = place
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}
        self._channels: set[Channel[bytes]] = set()
        #: Those that have shown no ticket, the oldest first.
        self._silents: dict[Channel[bytes], None] = {}
        self._names: tuple[str, ...] = ()
        self._listeners: list[socket.socket] = []
        self._reactor: Reactor | None = None
        self._thread: threading.Thread | None = None

    # ---- for the gateway

    def start(self) -> None:
        """Listen, where the system and the disk allow what is needed."""
        if self._place is None:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(_sealed(_new(self._directory)))
            self._reactor = Reactor(on_error=lambda error: _log.error("a file of a call: %s", error, exc_info=error))
            self._listen(self._place, self._reactor)
        except OSError as error:
            _log.warning("large arguments and results of calls go through HTTP: %s", error)
            self.close()
            return
        self._thread = threading.Thread(target=self._reactor.run, name="files of calls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more. New files that were not taken are gone."""
        self._names = ()
        if self._thread is not None and self._reactor is not None:
            self._reactor.post(partial(self._end, self._reactor))
            self._thread.join()
        if self._reactor is not None:
            self._reactor.close()
        for listener in self._listeners:
            listener.close()
        self._reactor = self._thread = None

    @property
    def open(self) -> bool:
        """True when files can be had."""
        return bool(self._names)

    def to_write(self, owner: str, size: int) -> Mapping[str, Any] | None:
        """A ticket for a new file of that many bytes; None where there are none. Raises `StorageFull`."""
        if not self._names:
            return None
        with suppress(OSError):
            if disk_of(self._directory).free < size:
                raise StorageFull(
                    f"The lab has no room for this. {full_at(self._directory, needed=size)}",
                    remedy="Free space.",
                )
        return self._ticket(owner, size, None)

    def to_read(self, owner: str, body: Body) -> Mapping[str, Any] | None:
        """A ticket for a body's file; None where it has none, or is too small for this."""
        if not self._names or body.path is None or body.size < LEAST:
            return None
        return self._ticket(owner, body.size, body.path)

    def take(self, word: str, owner: str) -> Body:
        """The body that was written to the file of a ticket. Raises `Conflict` where it is gone, or not as it should be."""
        with self._guard:
            ticket = self._tickets.get(word)
            if ticket is None or ticket.owner != owner or ticket.file is None:
                raise Conflict("The lab has no file for this ticket any more.", remedy="Send the body itself.")
            del self._tickets[word]
            file, ticket.file = ticket.file, None
        try:
            size = _written(file, self._monotonic)
            if size != ticket.size:
                raise Conflict(f"The file has {size} bytes, and not {ticket.size}.", remedy="Send the body itself.")
            return Body(size=size, path=str(self._named(file)))
        except OSError as error:
            why = "somebody still writes it" if error.errno == errno.EAGAIN else error.strerror
            raise Conflict(f"The lab cannot take the file: {why}.", remedy="Send the body itself.") from error
        finally:
            os.close(file)

    async def with_file(self, frame: Frame, owner: str) -> Frame:
        """The frame with the body that is in a file, if it says so by a ticket. Raises `Conflict` as `take` does."""
        word = frame.header.get("file")
        if word is None:
            return frame
        if not isinstance(word, str) or frame.body.size:
            raise Invalid("A frame with a file has its ticket, and no body.")
        return Frame(header=frame.header, body=await to_thread.run_sync(self.take, word, owner))

    def _named(self, file: int) -> Path:
        path = self._directory / secrets.token_hex(16)
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Both directories are said, so that Python calls linkat(2), which follows this link: the file has no other name.
            os.link(f"/proc/self/fd/{file}", path.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
        finally:
            os.close(directory)
        return path

    def _ticket(self, owner: str, size: int, path: str | None) -> Mapping[str, Any] | None:
        now, word, proof = self._monotonic(), secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        with self._guard:
            for old, ticket in list(self._tickets.items()):
                if ticket.until <= now and ticket.channel is None:
                    del self._tickets[old]
            if sum(ticket.owner == owner for ticket in self._tickets.values()) >= _OF_ONE:
                return None
            self._tickets[word] = _Ticket(owner=owner, proof=proof, size=size, until=now + _UNUSED, path=path)
        return {"ticket": word, "proof": proof, "size": size, "sockets": list(self._names)}

    # ---- the thread

    def _listen(self, place: Path, reactor: Reactor) -> None:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        # By its path behind walls; by a name for other Unix users of the machine, who cannot look into the lab's directories.
        word = f"@carrel-{secrets.token_hex(8)}"
        for name in (str(place), "\0" + word[1:]):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            self._listeners.append(listener)
            listener.bind(name)
            listener.listen(64)
            listener.setblocking(False)
            reactor.watch(listener, partial(self._accept, listener, reactor))
        self._names = (str(place), word)

    def _accept(self, listener: socket.socket, reactor: Reactor) -> None:
        with suppress(BlockingIOError):
            stream, _ = listener.accept()
            if len(self._silents) >= _STRANGERS:  # the oldest has had more time than a program needs that has a ticket
                next(iter(self._silents)).end(Ended("others want to show their tickets"))
            if len(self._channels) >= _CONNECTIONS:
                stream.close()
                return
            channel: Channel[bytes] = Channel(Lines(_LONGEST), stream)
            self._channels.add(channel)
            self._silents[channel] = None
            channel.attach(reactor, on_message=self._shown, on_end=self._gone)
            reactor.later(_SILENT, partial(self._silent, channel))

    def _silent(self, channel: Channel[bytes]) -> None:
        if channel in self._silents:
            channel.end(Ended("it has shown no ticket"))

    def _shown(self, channel: Channel[bytes], line: bytes) -> None:
        try:
            word = str(object_of(line).get("ticket"))
        except Garbled:
            word = ""
        with self._guard:
            found = self._tickets.get(word)
            ticket = found if found is not None and found.channel is None and found.until > self._monotonic() else None
            if ticket is not None:
                ticket.channel = channel
                self._silents.pop(channel, None)
        if ticket is None:
            channel.end(Ended("it is no ticket"))
            return
        try:
            file = self._open(ticket)
        except OSError as error:
            _log.warning("a file of a call cannot be opened: %s", error)
            channel.end(Ended("there is no file"))
            return
        channel.send(object_line({"proof": ticket.proof}), [file])
        os.close(file)

    def _open(self, ticket: _Ticket) -> int:
        if ticket.path is not None:
            return os.open(ticket.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        file = _new(self._directory)
        ticket.file = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        return file

    def _gone(self, channel: Channel[bytes], _why: Ended) -> None:
        self._channels.discard(channel)
        self._silents.pop(channel, None)
        with self._guard:
            for word, ticket in list(self._tickets.items()):
                if ticket.channel is channel:
                    del self._tickets[word]
                    if ticket.file is not None:
                        os.close(ticket.file)

    def _end(self, reactor: Reactor) -> None:
        for channel in list(self._channels):
            channel.end(Ended("the lab stops"))
        reactor.stop()


def _new(directory: Path) -> int:
    """A file without a name, for writing (O_TMPFILE, open(2))."""
    return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _sealed(file: int) -> int:
    """Close what writes; return the same file for reading. Raises `OSError` where the system cannot say that nobody writes."""
    try:
        reading = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(file)
    try:
        _written(reading, time.monotonic)
    except OSError:
        os.close(reading)
        raise
    return reading


def _written(file: int, monotonic: Callable[[], float]) -> int:
    """The size of a file that nobody can change any more. Raises `OSError`: EAGAIN while somebody has it open for writing.

    The kernel gives a lease for reading (F_SETLEASE, fcntl(2)) only then, mappings of memory included; and the file has no name
    by which another could open it.
    """
    deadline = monotonic() + _FORKED
    fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # what would tell that the lease breaks is harmless
    while True:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            break
        except OSError as error:
            if error.errno != errno.EAGAIN or monotonic() >= deadline:
                raise
            time.sleep(0.01)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink or about.st_uid != os.geteuid():
        raise OSError(errno.EINVAL, "it is no new file of the lab's")
    return about.st_size
