"""How many calls of a `map` are done, for a person who waits for them."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

#: Seconds for which nothing is said, and from one word to the next.
_MOMENT, _PAUSE = 1.0, 0.2


def somebody_reads() -> bool:
    """True where standard error is a terminal, or the output of a notebook's cell."""
    return sys.stderr is not None and (sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel."))


class Counted:
    """Calls that are counted: one line on standard error says how many are done, and goes with the last."""

    def __init__(self, futures: Sequence[concurrent.futures.Future[Any]]) -> None:
        self._guard = threading.Lock()
        self._asked, self._done, self._shown = len(futures), 0, 0
        self._next = time.monotonic() + _MOMENT
        for future in futures:
            future.add_done_callback(self._count)

    def _count(self, _: object) -> None:
        with self._guard:
            self._done += 1
            if self._done == self._asked and self._shown:
                self._say("")
            elif self._done < self._asked and time.monotonic() >= self._next:
                self._next = time.monotonic() + _PAUSE
                self._say(f"{self._done} of {self._asked} calls done")

    def _say(self, text: str) -> None:
        sys.stderr.write(f"\r{text.ljust(self._shown)}" if text else f"\r{' ' * self._shown}\r")
        sys.stderr.flush()
        self._shown = len(text)
