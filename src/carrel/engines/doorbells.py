"""The socket that runners ring when there is news."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

from carrel.core.domain.errors import Unavailable
from carrel.engines.attempts import Key

#: Longest path that a socket address holds (unix(7): 108 bytes with the final zero).
_ADDRESS_LIMIT = 107


class Doorbells:
    """A datagram socket at `path`, which may be longer than socket addresses may be."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if len(os.fsencode(path)) <= _ADDRESS_LIMIT:
                self._socket.bind(os.fspath(path))
            else:
                directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    self._socket.bind(f"/proc/self/fd/{directory}/{path.name}")
                finally:
                    os.close(directory)
            path.chmod(0o600)
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Readable when somebody rang."""
        return self._socket.fileno()

    def rings(self) -> set[Key]:
        """Return whose bell was rung since the last time."""
        found: set[Key] = set()
        while True:
            try:
                words = self._socket.recv(64).split()
            except BlockingIOError:
                return found
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
                found.add((int(words[0]), int(words[1])))

    def close(self) -> None:
        """Stop listening. The path stays: ringing there is refused, and runners take no notice."""
        self._socket.close()


class NetworkDoorbells:
    """A UDP socket for runners on other machines, which reach no unix socket here.

    A ring says that there is something to read, and nothing else; it may get lost, and a process that has seen the word may send
    one. So it is neither encrypted nor answered. Port and word stay the same from one engine to the next.
    """

    def __init__(self, file: Path, host: str) -> None:
        """`file` remembers port and word; `host` is the name by which other machines reach this one."""
        remembered = file.read_text().split() if file.exists() else []
        port, self._word = (int(remembered[0]), remembered[1]) if len(remembered) == 2 else (0, secrets.token_hex(8))
        self._socket = _bound(host, port)
        port = self._socket.getsockname()[1]
        draft = file.with_suffix(".new")
        draft.touch(mode=0o600)
        draft.write_text(f"{port} {self._word}\n")
        draft.rename(file)
        #: Where runners ring.
        self.address = f"{host}:{port}/{self._word}"

    def fileno(self) -> int:
        """Readable when somebody rang."""
        return self._socket.fileno()

    def rings(self) -> set[Key]:
        """Return whose bell was rung since the last time."""
        found: set[Key] = set()
        for _ in range(1000):  # a process that sends without end keeps no thread from other work
            try:
                words = self._socket.recv(128).split()
            except OSError:
                break
            known = len(words) == 3 and hmac.compare_digest(words[0], self._word.encode())
            if known and words[1].isdigit() and words[2].isdigit():
                found.add((int(words[1]), int(words[2])))
        return found

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket at the address that `host` has, or at all where it is none of this machine's; at `port` if that is free."""
    addresses: list[tuple[socket.AddressFamily, str]] = []
    with suppress(OSError):
        addresses = [(found[0], str(found[4][0])) for found in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[:1]]
    for family, address in [*addresses, (socket.AF_INET, "")]:
        for wanted in dict.fromkeys((port, 0)):
            bell = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            try:
                bell.bind((address, wanted))
            except OSError:
                bell.close()
            else:
                return bell
    raise Unavailable("No UDP port can be had for the news of jobs.", remedy="See what the system allows (ulimit -n).")
