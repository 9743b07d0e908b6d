"""The socket that runners ring when there is news."""

from __future__ import annotations

import os
import socket
from pathlib import Path

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
