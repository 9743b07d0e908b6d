"""The lab's connections: how many there are, whose, and how long one may be silent. No flood of them uses up what all need.

A connection is a *stranger's* until a request on it was signed in. Where all places are taken, the stranger that has done nothing
for the longest time gives way: a program that means it has said what it wants within milliseconds. A quarter of the places is
strangers' in any case, since everybody begins as one; the others belong to those who are signed in, from whom no stranger takes
one. On the loopback, and behind a proxy, the address tells nothing about who it is.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.core.domain.errors import TooMany
from carrel.core.transport.descriptors import most_descriptors

_log = logging.getLogger(__name__)

#: Descriptors that connections never get: the database, logs, files, engines, sessions, MLflow.
_RESERVE = 1024
#: Seconds for TLS and the head of the first request; seconds between two requests, the second one's head included.
FIRST_WORDS, _PAUSE = 15.0, 90.0
#: A body has to come at this pace: so many bytes in so many seconds. An upload of any size over a slow line does.
_PIECE, _PIECE_SECONDS = 4096, 60.0
#: Seconds in which the other side has to read something of an answer that waits for it.
_READS = 300.0
#: Connections that are taken before the others are looked after again; those that were closed, and are not gone yet.
_AT_ONCE, _LEAVING = 64, 64
#: Seconds between two looks at the deadlines, and between two lines in the log.
_LOOK, _QUIET = 1.0, 60.0


class Connection(socket.socket):
    """One connection, which counts until its descriptor is closed. Of the event loop's thread."""

    def __init__(self, accepted: socket.socket, address: str, door: Door) -> None:
        """Take over the descriptor of `accepted`."""
        super().__init__(door.family, socket.SOCK_STREAM, 0, accepted.detach())
        self.setblocking(False)
        self.address = address
        self._door = door
        self.transport: asyncio.Transport | None = None
        #: Whose request is being answered: user and job (0: none).
        self.owner: tuple[str, int] | None = None
        #: The moment at which it ends if nothing happens, and what was not sent then.
        self.due = math.inf
        self.unsent = 0
        #: Requests so far: the next one may come before the last one is quite over.
        self.requests = 0

    def known(self, subject: str, job: int | None) -> None:
        """Its request is signed in. Raises `TooMany` where that user, or that job, has as many at once as one may have."""
        self._door.known(self, (subject, job or 0))

    def end(self) -> None:
        """Break it off."""
        if self.transport is not None:
            self.transport.abort()
        else:
            with suppress(OSError):  # its handshake sees the end
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The descriptor is closed."""
        self._door.left(self)
        super().close()

    def detach(self) -> int:
        """The descriptor is closed by uvloop, which knows its number."""
        self._door.left(self)
        return super().detach()


class Door:
    """Accepts connections. Of the event loop's thread."""

    def __init__(
        self,
        listener: socket.socket,
        *,
        limit: int,
        proxied: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit`: connections at once, where there are descriptors for as many; `proxied`: there is a proxy in front."""
        self._listener = listener
        self.family = listener.family
        self._monotonic = monotonic
        self._many = lru_cache(self._is_many)
        self._proxied = proxied
        descriptors = most_descriptors()
        # Half of them: one that is carried on to a session or to MLflow has two.
        self._most = max(16, min(limit, (descriptors - min(_RESERVE, descriptors // 2)) // 2))
        self._at_once = min(_AT_ONCE, self._most // 16)
        self._strangers: dict[Connection, None] = {}
        #: Of those who were signed in: between two requests, and in one.
        self._resting: dict[Connection, None] = {}
        self._served: dict[Connection, None] = {}
        self._leaving: set[Connection] = set()
        self._owners: Counter[tuple[str, int]] = Counter()
        self._addresses: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._said = -_QUIET
        self._looking: asyncio.TimerHandle | None = None

    # ---- coming

    def open(self, protocol: Callable[[Connection], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        """Accept from now on, in the loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._protocol, self._tls = protocol, tls
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)
        self._look()

    def close(self) -> None:
        """Accept no more; connections stay."""
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._looking is not None:
            self._looking.cancel()

    def _accept(self) -> None:
        for _ in range(self._at_once):
            if len(self._leaving) >= _LEAVING:
                return  # the loop comes back when they are gone
            try:
                accepted, where = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._say("The lab cannot take a connection: %s.", error.strerror)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(_LOOK, self._again)
                return
            address = str(where[0])
            if self._addresses[address] >= self._most // 4 and not self._many(address):
                self._say("%s has as many connections as one address may have (%d).", address, self._most // 4)
                accepted.close()
                continue
            if len(self._strangers) + len(self._resting) + len(self._served) >= self._most:
                self._make_room()
            connection = Connection(accepted, address, self)
            connection.due = self._monotonic() + FIRST_WORDS
            self._put(connection, self._strangers)
            task = self._loop.create_task(self._let_in(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _again(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener, self._accept)

    async def _let_in(self, connection: Connection) -> None:
        patience = FIRST_WORDS if self._tls is not None else None
        try:
            connection.transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._protocol(connection), connection, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except OSError:  # it has gone, or does not speak TLS
            connection.close()
            return
        if connection in self._leaving:
            connection.end()

    def _is_many(self, address: str) -> bool:
        """True for an address that does not tell who it is."""
        found = ipaddress.ip_address(address.partition("%")[0])
        found = getattr(found, "ipv4_mapped", None) or found
        return self._proxied or found.is_loopback

    # ---- going

    def _make_room(self) -> None:
        self._say("There are %d connections, as many as the lab takes; those that do least are closed.", self._most)
        if self._strangers and (len(self._strangers) > self._most // 4 or not (self._resting or self._served)):
            self._put_out(next(iter(self._strangers)))
        elif self._resting:
            self._put_out(next(iter(self._resting)))
        else:
            users = Counter(connection.owner[0] for connection in self._served if connection.owner is not None)
            greedy, _count = users.most_common(1)[0]
            self._put_out(next(one for one in self._served if one.owner is not None and one.owner[0] == greedy))

    def _put_out(self, connection: Connection) -> None:
        self.left(connection)
        self._leaving.add(connection)
        connection.end()

    def left(self, connection: Connection) -> None:
        """It does not count any more; again is harmless."""
        self._put(connection, None)
        self._leaving.discard(connection)

    def _put(self, connection: Connection, place: dict[Connection, None] | None) -> None:
        """Move it to the end of `place`. Nothing of its owner's is counted unless its request is served."""
        if connection in self._strangers:
            self._addresses[connection.address] -= 1
            if not self._addresses[connection.address]:
                del self._addresses[connection.address]
        for before in (self._strangers, self._resting, self._served):
            before.pop(connection, None)
        if connection.owner is not None:
            self._owners[connection.owner] -= 1
            if not self._owners[connection.owner]:
                del self._owners[connection.owner]
            connection.owner = None
        if place is not None:
            place[connection] = None
        if place is self._strangers:
            self._addresses[connection.address] += 1

    def _look(self) -> None:
        now = self._monotonic()
        for connection in [*self._strangers, *self._resting, *self._served]:
            if connection.due > now:
                continue
            unsent = 0 if connection.transport is None else connection.transport.get_write_buffer_size()
            if unsent and unsent != connection.unsent:  # an answer goes out over a slow line
                connection.unsent, connection.due = unsent, now + _READS
            else:
                self._put_out(connection)
        self._looking = self._loop.call_later(_LOOK, self._look)

    def _say(self, text: str, *about: object) -> None:
        if self._monotonic() - self._said >= _QUIET:
            self._said = self._monotonic()
            _log.warning(text, *about)

    # ---- requests

    def known(self, connection: Connection, owner: tuple[str, int]) -> None:
        """A request is signed in. Raises `TooMany`."""
        if connection.owner == owner or connection in self._leaving:
            return
        if self._owners[owner] >= (most := max(16, self._most // 16)):
            raise TooMany(
                f"{'This job' if owner[1] else 'This user'} has {most} requests at once, streams and websockets among them.",
                remedy="End some of them, or ask an administrator for a larger connection_limit.",
            )
        self._put(connection, self._served)
        connection.owner = owner
        self._owners[owner] += 1

    def attended(self, app: ASGIApp) -> ASGIApp:
        """`app`, whose requests have to go on: what a client sends comes at a pace, and what it gets it reads."""

        async def attend(scope: Scope, receive: Receive, send: Send) -> None:
            connection = scope.get("state", {}).get("connection")
            if not isinstance(connection, Connection) or connection in self._leaving:
                await app(scope, receive, send)
                return
            self._put(connection, self._strangers)
            connection.due, connection.unsent = math.inf, 0
            connection.requests = number = connection.requests + 1
            try:
                if scope["type"] == "http":
                    await app(scope, self._paced(connection, receive), self._read(connection, send))
                else:  # pings tell whether somebody is there
                    await app(scope, receive, send)
            finally:
                here = connection in self._served or connection in self._strangers
                if here and connection.requests == number:
                    self._put(connection, self._strangers if connection.owner is None else self._resting)
                    connection.due = self._monotonic() + _PAUSE

        return attend

    def _paced(self, connection: Connection, receive: Receive) -> Receive:
        more, came, left = True, 0, _PIECE_SECONDS

        async def receive_in_time() -> Message:
            nonlocal more, came, left
            if not more:
                return await receive()  # which tells that the client has gone
            began = self._monotonic()
            connection.due = began + left
            message = await receive()
            connection.due = math.inf
            more, came = bool(message.get("more_body")), came + len(message.get("body", b""))
            left = left - (self._monotonic() - began)
            if came >= _PIECE:
                came, left = 0, _PIECE_SECONDS
            return message

        return receive_in_time

    def _read(self, connection: Connection, send: Send) -> Send:
        async def send_in_time(message: Message) -> None:
            connection.due = self._monotonic() + _READS
            await send(message)
            connection.due = math.inf

        return send_in_time
