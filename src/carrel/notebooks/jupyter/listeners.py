"""Where programs of this session listen: on TCP ports that one of its own processes has, or on sockets in its directory.

Other users, and other sessions of the same user, listen on the same loopback. What listens is told by its socket's inode
(proc(5), ``/proc/net/tcp`` and ``/proc/pid/fd``). The runner is a subreaper: all processes of the session are below it.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from carrel.node.runner.tree import descendants

#: A family of sockets, and an address of it.
Address = tuple[socket.AddressFamily, str | tuple[str, int]]
#: Name of a socket in the session's directory of pages.
NAME = r"[A-Za-z][A-Za-z0-9_-]{0,40}"
#: In /proc/net/tcp.
_LISTENS = "0A"
#: Addresses of listeners that the loopback reaches, as /proc/net/tcp has them -> where to connect.
_REACHED = {
    "0100007F": ("127.0.0.1",),
    "00000000": ("127.0.0.1",),
    # Whether it takes version 4, too, is not in the table.
    "00000000000000000000000000000000": ("::1", "127.0.0.1"),
    "00000000000000000000000001000000": ("::1",),
    "0000000000000000FFFF00000100007F": ("127.0.0.1",),
}
_SOCKET = re.compile(r"socket:\[([0-9]+)\]")


class SessionListeners:
    """What this session's programs have opened. Made by the notebook server when it starts."""

    def __init__(self, pages: Path) -> None:
        self._pages = pages
        self._runner = os.getppid()

    def find(self, place: str) -> Sequence[Address]:
        """Where a port or a name is reached, to be tried in this order; nothing when no program of this session listens there."""
        if place.isdigit():
            return self._port(int(place))
        path = self._pages / place
        try:
            return [(socket.AF_UNIX, str(path))] if stat.S_ISSOCK(path.stat().st_mode) else []
        except OSError:
            return []

    def _port(self, port: int) -> Sequence[Address]:
        found = list(_listeners(port))
        own = self._inodes() if found else frozenset()
        # All that listen at an address: one that is a stranger's could be the one that answers.
        hosts = [host for host in dict.fromkeys(host for host, _ in found) if all(one in own for at, one in found if at == host)]
        return [(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port)) for host in hosts]

    def _inodes(self) -> frozenset[str]:
        # A server whose runner is gone is about to end, and its new parent has children of others.
        root = self._runner if os.getppid() == self._runner else os.getpid()
        return frozenset(inode for pid in descendants(root) for inode in _sockets(pid))


def _listeners(port: int) -> Iterator[tuple[str, str]]:
    """Address and inode of each socket that listens at this port and that the loopback reaches."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == _LISTENS and int(number, 16) == port and address in _REACHED:
                for host in _REACHED[address]:
                    yield host, fields[9]


def _sockets(pid: int) -> Iterator[str]:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    if match := _SOCKET.fullmatch(str(Path(entry.path).readlink())):
                        yield match[1]
                except OSError:
                    continue
    except OSError:
        return
