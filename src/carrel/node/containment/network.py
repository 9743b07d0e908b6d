"""A network of a contained process' own: its loopback, and *doors* on it that lead to one address outside each.

A door listens inside, at the address that the process got, and is served by a *forwarder* outside, which hands every connection
on. A socket stays in the network in which it was made (network_namespaces(7)), so a listener that was made inside and is given to
the forwarder takes connections from inside, while the connections that the forwarder makes leave from outside. Nothing else leads
out.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from carrel.core.transport.reactor import Reactor
from carrel.node.containment.walls import Door

# netdevice(7), <linux/sockios.h>.
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS, _SET_MASK = 0x8913, 0x8914, 0x8916, 0x891C
_UP = 0x1
_LOOPBACK = b"lo"
#: Connections of one job at once; more wait until one of them ends.
_MOST = 256
#: Bytes on their way in one direction of a connection.
_BUFFER = 65536
#: Seconds in which the other side has to answer, and in which an address has to be there.
_PATIENCE, _SETTLING = 30.0, 10.0


def open_network(doors: Sequence[Door]) -> list[tuple[int, socket.socket]]:
    """In a new network: bring its loopback up and listen at each door. Return the listeners, with the number of their door."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as about:
        flags = struct.unpack_from("H", fcntl.ioctl(about, _GET_FLAGS, struct.pack("16sH22x", _LOOPBACK, 0)), 16)[0]
        fcntl.ioctl(about, _SET_FLAGS, struct.pack("16sH22x", _LOOPBACK, flags | _UP))
    listeners: list[tuple[int, socket.socket]] = []
    for number, door in enumerate(doors):
        for address in door.addresses:
            try:
                listeners.append((number, _listen(address, door.port, len(listeners))))
            except OSError as error:
                # A kernel without IPv6 has no ::1, and nobody inside looks for it there.
                if ":" not in address or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise OSError(error.errno, error.strerror, f"port {door.port} of {address}") from error
    return listeners


def _listen(address: str, port: int, alias: int) -> socket.socket:
    if not address.startswith("127.") and address != "::1":
        _add_address(address, alias)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    until = time.monotonic() + _SETTLING
    while True:
        try:
            listener.bind((address, port))
            break
        except OSError as error:
            # The kernel makes a new IPv6 address usable a little later (RFC 4862, 5.4), on a busy machine much later.
            if address == "::1" or ":" not in address or error.errno != errno.EADDRNOTAVAIL or time.monotonic() > until:
                listener.close()
                raise
            time.sleep(0.005)
    listener.listen(128)
    return listener


def _add_address(address: str, alias: int) -> None:
    """Give the loopback one more address, so that programs inside can connect to it."""
    if ":" in address:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as about:
            index = socket.if_nametoindex(_LOOPBACK.decode())
            fcntl.ioctl(about, _SET_ADDRESS, struct.pack("16sIi", socket.inet_pton(socket.AF_INET6, address), 128, index))
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as about:
        for call, number in ((_SET_ADDRESS, address), (_SET_MASK, "255.255.255.255")):
            request = struct.pack("16sHH4s16x", b"lo:%d" % alias, socket.AF_INET, 0, socket.inet_aton(number))
            fcntl.ioctl(about, call, request)


# --- the forwarder --------------------------------------------------------------------------------------------------------------


class Forwarder:
    """A process that stays outside when the others go in. Made before there are new namespaces."""

    def __init__(self, doors: Sequence[Door], lifeline: int) -> None:
        self._doors = tuple(doors)
        #: The processes inside hold it; when none does any more the forwarder ends. -1: there is none.
        self.held = -1
        self._pid = 0
        if not doors:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _be_porter(theirs.detach(), lifeline, self._doors)
            finally:
                os._exit(1)
        theirs.close()
        self.held = ours.detach()

    def open(self) -> None:
        """In the new network: bring it up, and hand the doors over."""
        listeners = open_network(self._doors)
        if listeners:
            with socket.socket(fileno=os.dup(self.held)) as there:
                numbers = json.dumps([number for number, _listener in listeners]).encode()
                socket.send_fds(there, [numbers], [listener.fileno() for _number, listener in listeners])
        for _number, listener in listeners:
            listener.close()

    def end(self) -> None:
        """In the process that made it: end it and see it gone."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0


def _be_porter(control: int, lifeline: int, doors: Sequence[Door]) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    begin = 3
    for fd in sorted((control, lifeline)):
        os.closerange(begin, fd)
        begin = fd + 1
    os.closerange(begin, os.sysconf("SC_OPEN_MAX"))
    there = socket.socket(fileno=control)
    said, fds, _flags, _address = socket.recv_fds(there, 4096, 64)
    if said:
        listeners = [socket.socket(fileno=fd) for fd in fds]
        _Relay(there, lifeline, dict(zip(listeners, (doors[number] for number in json.loads(said)), strict=True))).run()
    os._exit(0)


class _Side:
    """One end of a connection."""

    __slots__ = ("ended", "other", "sock", "waiting")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.other: _Side = self
        #: What came from the other end and is not sent yet.
        self.waiting = b""
        #: True when nothing more is read here.
        self.ended = False


class _Relay:
    """Until nobody is inside any more, or the runner is gone."""

    def __init__(self, control: socket.socket, lifeline: int, doors: dict[socket.socket, Door]) -> None:
        self._doors = doors
        self._reactor = Reactor()
        self.run = self._reactor.run
        self._connections = 0
        for end in (control, lifeline):
            self._reactor.watch(end, self._reactor.stop)
        for listener in doors:
            listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        for listener, door in self._doors.items():
            self._reactor.watch(listener, partial(self._welcome, listener, door), read=self._connections < _MOST)

    def _welcome(self, listener: socket.socket, door: Door) -> None:
        try:
            inside, _address = listener.accept()
        except OSError:
            return
        try:
            outside = socket.create_connection((door.host, door.port), timeout=_PATIENCE)
        except OSError:
            inside.close()
            return
        one, two = _Side(inside), _Side(outside)
        one.other, two.other = two, one
        for side in (one, two):
            side.sock.setblocking(False)
            self._watch(side)
        self._connections += 1
        self._listen()

    def _move(self, side: _Side) -> None:
        try:
            with suppress(BlockingIOError):
                if side.waiting:
                    side.waiting = side.waiting[side.sock.send(side.waiting) :]
                    if not side.waiting and side.other.ended:
                        side.sock.shutdown(socket.SHUT_WR)
            with suppress(BlockingIOError):
                if not side.ended and not side.other.waiting:
                    side.other.waiting = side.sock.recv(_BUFFER)
                    if not side.other.waiting:
                        side.ended = True
                        side.other.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._close(side)
            return
        if side.ended and side.other.ended and not side.waiting and not side.other.waiting:
            self._close(side)
            return
        for one in (side, side.other):
            self._watch(one)

    def _watch(self, side: _Side) -> None:
        reads = not side.ended and not side.other.waiting
        self._reactor.watch(side.sock, partial(self._move, side), read=reads, write=bool(side.waiting))

    def _close(self, side: _Side) -> None:
        for one in (side, side.other):
            self._reactor.unwatch(one.sock)
            one.sock.close()
        self._connections -= 1
        self._listen()
