"""Takes the lab's connections on a node of a cluster, and carries them to the session's own socket.

``python -m carrel.notebooks.relay SOCKET ADDRESS PORTS LAB``: a process beside the notebook server, so that neither holds up the
other. It says where it listens, in the file ADDRESS, once SOCKET takes connections, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from carrel.core.domain.errors import CarrelError, Unavailable
from carrel.notebooks.address import TlsAddress, make_certificate, read_ports, server_context, write_address

#: Exit code when there is no way to listen: starting it again would not help.
NO_WAY = 2
#: Seconds that a stranger has for a handshake, and that a connection has for its last words.
_HANDSHAKE, _SHUTDOWN = 10.0, 5.0
#: Seconds between two looks whether the session's socket is there.
_LOOK = 0.02
_BACKLOG = 256
#: Ports of a range that are tried, at most.
_TRIES = 200
#: A machine that went away is noticed within two minutes (tcp(7)).
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


def main(words: Sequence[str]) -> int:
    """Relay until the standard input ends."""
    path, address, ports, lab = words
    # The end of the session signals all of its processes; while the notebook server still says goodbye, it is carried.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        with listen(read_ports(ports), facing(lab)) as listener:
            certificate, key = make_apart(f"carrel session at {listener.getsockname()[0]}", datetime.now(UTC))
            asyncio.run(relay(listener, Path(path), Path(address), certificate, key))
    except CarrelError as error:
        print(error, file=sys.stderr)
        return NO_WAY
    return 0


def make_apart(name: str, now: datetime) -> tuple[str, str]:
    """`make_certificate` in a child: what that needs takes a third of a relay's memory, and is needed once. Before any thread."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(make_certificate(name, now)).encode())  # less than a pipe takes at once (pipe(7))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        made = answer.read()
    os.waitpid(pid, 0)
    if not made:
        raise Unavailable("No certificate could be made for the session.", remedy="See the log of the session.")
    certificate, key = json.loads(made)
    return str(certificate), str(key)


def facing(lab: str) -> str:
    """The address of this machine at which the lab finds it: that from which the way to the lab begins."""
    parts = urlsplit(lab)
    with suppress(OSError):
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _name, target in found:
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # sends nothing
                return str(probe.getsockname()[0])
    return socket.gethostname()


def listen(ports: range, host: str) -> socket.socket:
    """A socket that listens on one of the ports. Raises `Unavailable`."""
    wanted = random.sample(ports, min(_TRIES, len(ports)))
    why: OSError | None = None
    for port in wanted:
        try:
            return socket.create_server((host, port), family=_family(host), backlog=_BACKLOG)
        except OSError as error:
            why = error
    raise Unavailable(
        f"The session cannot listen on {host}, ports {ports.start} to {ports.stop - 1}: {why}.",
        remedy="Ask an administrator for more slurm_session_ports.",
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def relay(listener: socket.socket, path: Path, address: Path, certificate: str, key: str) -> None:
    """Carry connections between the listener and the socket at `path`, and write `address` once that can be done."""
    loop = asyncio.get_running_loop()
    host, port = listener.getsockname()[:2]
    server = await loop.create_server(
        lambda: Outer(path),
        sock=listener,
        ssl=server_context(certificate, key),
        ssl_handshake_timeout=_HANDSHAKE,
        ssl_shutdown_timeout=_SHUTDOWN,
        backlog=_BACKLOG,
    )
    over = asyncio.Event()
    threading.Thread(target=_wait_for_end, args=(loop, over), daemon=True).start()
    async with server:
        if await _answers(path, over):
            write_address(address, TlsAddress(host=host, port=port, certificate=certificate, key=key))
            await over.wait()
            address.unlink(missing_ok=True)


def _wait_for_end(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    with suppress(OSError):
        while sys.stdin.buffer.read(4096):
            pass
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(over.set)


async def _answers(path: Path, over: asyncio.Event) -> bool:
    """Wait until somebody takes connections there; False when the session is over before."""
    while not over.is_set():
        try:
            _reader, writer = await asyncio.open_unix_connection(path)
        except OSError:
            await asyncio.sleep(_LOOK)
        else:
            writer.close()
            return True
    return False


class _End(asyncio.Protocol):
    """One end of a carried connection: what arrives goes out at the other, at the pace of the slower one."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _End | None = None

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """This end is slow: nothing more is read at the other."""
        if self.other is not None and self.other.transport is not None:
            with suppress(RuntimeError):
                self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.other is not None and self.other.transport is not None:
            with suppress(RuntimeError):
                self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """The other end closes, too, after what it still has to send."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()
        self.transport = None


class Inner(_End):
    """Towards the notebook server."""

    def __init__(self, other: Outer) -> None:
        super().__init__()
        self.other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport


class Outer(_End):
    """Towards the lab; made when somebody has shown the certificate."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect to the session, and read nothing before that is done."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        for option in KEEP_ALIVE:
            transport.get_extra_info("socket").setsockopt(*option)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            inner, self.other = await loop.create_unix_connection(lambda: Inner(self), str(self._path))
        except OSError:
            if self.transport is not None:
                self.transport.abort()
            return
        if self.transport is None:  # the client has gone
            inner.close()
        else:
            self.transport.resume_reading()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
