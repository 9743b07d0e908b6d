"""Own connections: those of processes that this one may look into. Behind walls, these are the session's, else its user's."""

import os
import socket
import struct
from contextlib import suppress


class OwnListener(socket.socket):
    """Closes the connections of strangers before anything is read or said."""

    def accept(self):
        """The next own connection."""
        while True:
            connection, address = super().accept()
            if is_own(connection):
                return connection, address
            connection.close()


def is_own(connection):
    """Return whether the other end of a connection on this machine is open in an own process (proc(5), ``/proc/net/tcp``)."""
    try:
        ends = [_as_listed(connection.family, *end[:2]) for end in (connection.getpeername(), connection.getsockname())]
        with open("/proc/self/net/tcp6" if connection.family == socket.AF_INET6 else "/proc/self/net/tcp") as table:
            inodes = [fields[9] for fields in map(str.split, table) if fields[1:3] == ends]
    except OSError:
        return False
    links = {"socket:[%s]" % inode for inode in inodes}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            for fd in os.listdir("/proc/%s/fd" % pid):
                with suppress(OSError):
                    if os.readlink("/proc/%s/fd/%s" % (pid, fd)) in links:
                        return True
    return False


def _as_listed(family, host, port):
    address = socket.inet_pton(family, host)
    return "%s:%04X" % ("".join("%08X" % word for word in struct.unpack("=%dI" % (len(address) // 4), address)), port)


def keep_apart():
    """From now on, what debugpy listens on in this process takes own connections alone."""
    from debugpy.common import sockets

    create = sockets.create_server

    def create_server(*arguments, **options):
        plain = create(*arguments, **options)
        seconds = plain.gettimeout()
        listener = OwnListener(plain.family, plain.type, plain.proto, plain.detach())
        listener.settimeout(seconds)
        return listener

    sockets.create_server = create_server
