"""Requests to slurmrestd: over a unix socket of our own user's, or over TCP. Each has a connection and a deadline of its own.

A connection that is kept can be closed by the other side at any moment, and then nobody knows whether the request was read.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import os
import pwd
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from carrel.core.domain.errors import Invalid
from carrel.core.domain.ports import Clock
from carrel.core.transport.channel import peer_credentials
from carrel.engines.slurm.errors import SlurmDown, SlurmSlow
from carrel.engines.slurm.listing import Garbage
from carrel.engines.slurm.rest_answers import NotDone

#: Bytes of the largest answer that is read; those about one job have 4 KB.
_LARGEST = 4 * 1024**2
#: The largest number of a user that is no person (login.defs(5), SYS_UID_MAX), and the one of nobody.
_LAST_OF_THE_MACHINES, _NOBODY = 999, 65534
_LISTENS = "0A"
_REMEDY = 'Write it as "unix:/run/slurmrestd/socket", "https://host:port" or, on this machine, "http://localhost:port".'


@dataclass(frozen=True, slots=True, kw_only=True)
class RestAddress:
    """Where slurmrestd listens."""

    #: The path of its socket; "" when it listens on TCP.
    socket: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False

    @property
    def takes_tokens(self) -> bool:
        """True when it knows us by a token (JWT), False when by the user that we are."""
        return not self.socket

    def __str__(self) -> str:
        if self.socket:
            return f"unix:{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"


def read_address(text: str) -> RestAddress | None:
    """Return the address that a setting says, None for "". Raises `Invalid`."""
    if not text:
        return None
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or "\0" in path:
            raise Invalid(f"slurm_rest is {text!r}.", remedy=_REMEDY)
        return RestAddress(socket=path)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid(f"slurm_rest is {text!r}.", remedy=_REMEDY) from error
    if parts.username is not None or parts.password is not None:
        raise Invalid("slurm_rest names a user.", remedy="Leave it out: the lab gets tokens of its own from `scontrol token`.")
    if parts.scheme not in ("http", "https") or not host or not port or parts.path.strip("/") or parts.query or parts.fragment:
        raise Invalid(f"slurm_rest is {text!r}.", remedy=_REMEDY)
    if parts.scheme == "http" and not _is_here(host):
        raise Invalid(
            f"slurm_rest is {text!r}: the user's token would cross the network for all to read.",
            remedy="Write https://, with something that speaks TLS in front of slurmrestd, or use a unix socket.",
        )
    return RestAddress(host=host, port=port, tls=parts.scheme == "https")


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def send(
    address: RestAddress, method: str, path: str, body: bytes | None, headers: Mapping[str, str], *, timeout: float, clock: Clock
) -> tuple[int, bytes]:
    """Return the status and what was answered, within `timeout` seconds of the monotonic `clock`.

    `NotDone`: nothing was sent. After `SlurmSlow`, `SlurmDown` and `Garbage` the request may have been read.
    """
    deadline = clock() + timeout
    line = _connect(address, timeout)
    connection = http.client.HTTPConnection("localhost" if address.socket else address.host, address.port or None)
    connection.sock = cast(socket.socket, _Line(line, deadline, clock))
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", "Connection": "close", **headers})
        answer = connection.getresponse()
        text = answer.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise Garbage("What slurmrestd answered", text[:200].decode(errors="replace"))
        if answer.length:  # less came than was announced
            raise SlurmDown(f"{address} broke off in the middle of its answer.", remedy="Nothing is concluded from this.")
        return answer.status, text
    except TimeoutError as error:
        raise SlurmSlow(
            f"slurmrestd at {address} did not answer within {timeout:g} s.", remedy="Slurm's controller is slow or hangs."
        ) from error
    except (http.client.RemoteDisconnected, http.client.IncompleteRead, OSError) as error:
        raise SlurmDown(
            f"slurmrestd at {address} went away: {error or type(error).__name__}.", remedy="Nothing is concluded from this."
        ) from error
    except http.client.HTTPException as error:
        raise Garbage("What slurmrestd answered", str(error)) from error
    finally:
        line.close()


def _connect(address: RestAddress, timeout: float) -> socket.socket:
    if address.socket:
        return _of_our_own(address, _unix(address.socket, timeout))
    line: socket.socket | None = None
    try:
        line = socket.create_connection((address.host, address.port), timeout)
        if not address.tls:
            return _of_the_machine(address, line)
        return ssl.create_default_context().wrap_socket(line, server_hostname=address.host)
    except (OSError, ValueError) as error:
        if line is not None:
            line.close()
        raise NotDone(f"slurmrestd at {address} cannot be reached: {error}.", away=True) from error


def _of_our_own(address: RestAddress, line: socket.socket) -> socket.socket:
    """Return the connection when our own user listens there: slurmrestd does what it is asked as the user that it runs as."""
    user = peer_credentials(line).uid
    if user == os.getuid():
        return line
    line.close()
    theirs, ours = _name(user), _name(os.getuid())
    raise NotDone(f"slurmrestd at {address} runs as {theirs}, and not as {ours}: jobs would be those of {theirs}.", away=True)


def _of_the_machine(address: RestAddress, line: socket.socket) -> socket.socket:
    """Return the connection unless an ordinary user may be at its other end.

    Where slurmrestd does not run, anybody on the machine can listen at its port, and would be given a token.
    """
    strangers = {user for user in _listeners(address.port) if user > _LAST_OF_THE_MACHINES and user not in (_NOBODY, os.getuid())}
    if not strangers:
        return line
    line.close()
    whose = ", ".join(sorted(_name(user) for user in strangers))
    raise NotDone(f"What listens at {address} belongs to {whose}, who must not have a token of this user's.", away=True)


def _listeners(port: int) -> set[int]:
    """Return the users that listen at a port of this machine (proc(5), /proc/net/tcp)."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(int(fields[7]))
    return found


def _unix(path: str, timeout: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(timeout)
    try:
        line.connect(path)
    except (OSError, ValueError) as error:
        line.close()
        raise NotDone(f"slurmrestd at unix:{path} cannot be reached: {error}.", away=True) from error
    return line


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


class _Line:
    """A socket of which every send and every read ends at the deadline; what http.client needs of one."""

    def __init__(self, line: socket.socket, deadline: float, clock: Clock) -> None:
        self._line = line
        self._deadline = deadline
        self._clock = clock

    def sendall(self, data: bytes) -> None:
        self.limited().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Answer(self))

    def close(self) -> None:
        """Nothing: http.client calls it when the head of the answer has come, and reads on."""

    def limited(self) -> socket.socket:
        left = self._deadline - self._clock()
        if left <= 0:
            raise TimeoutError
        self._line.settimeout(left)
        return self._line


class _Answer(io.RawIOBase):
    def __init__(self, line: _Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._line.limited().recv_into(buffer)
