"""The pipe into which a command writes, on its way to the log."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carrel.core.domain.ports import Clock
    from carrel.core.spool import LogWriter

#: Bytes read from the pipe at once.
_CHUNK = 256 * 1024
#: Seconds of silence after which output that was held back (the start of a secret? the disk is full?) is tried again.
_SETTLE = 0.25


class OutputPipe:
    """Moves what a command writes to its log, as long as anybody has the other end."""

    def __init__(self, fd: int, log: LogWriter, poll: select.poll, monotonic: Clock, *, on_output: Callable[[], None]) -> None:
        """`fd` is closed at its end, and waited for with `poll` until then. `on_output`: there is more in the log."""
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
        #: None after its end.
        self.fd: int | None = fd
        #: When output that was held back is tried again.
        self.settle_at = inf
        self._log = log
        self._poll = poll
        self._monotonic = monotonic
        self._on_output = on_output

    def read(self) -> bool:
        """Move output to the log; return whether there may be more now."""
        if self.fd is None:
            return False
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(self.fd)
            os.close(self.fd)
            self.fd = None
            return False
        self._log.write(data)
        self.settle_at = self._monotonic() + _SETTLE if self._log.unsettled else inf
        self._on_output()
        return True

    def settle(self, now: float) -> None:
        """Try again what was held back, when it is time."""
        if now >= self.settle_at:
            self._log.settle()
            self.settle_at = now + 4 * _SETTLE if self._log.unsettled else inf
