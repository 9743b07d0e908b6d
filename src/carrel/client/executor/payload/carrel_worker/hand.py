"""The calls that a worker was given at once: short ones, which it carries out one after the other."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from carrel_worker.bodies import Bodies
from carrel_worker.connection import Lab

#: Seconds after which the lab is told what has ended, although calls are left; those go back with it.
_LONGEST = 0.05


class Hand:
    """What has not begun, and ends that the lab has not been told. One thread carries calls out; another one looks after it.

    The lock is held while the lab is told, so that no call begins in the moment in which it is given back.
    """

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._guard = threading.Lock()
        #: Headers and arguments.
        self._ahead: deque[tuple[dict[str, Any], Any]] = deque()
        self._ends: list[list[Any]] = []
        self._call = 0
        self._until = 0.0

    def take(self, calls: list[tuple[dict[str, Any], Any]]) -> None:
        """The lab has taken all ends, and given these calls."""
        with self._guard:
            self._ahead.extend(calls)
            self._until = time.monotonic() + _LONGEST

    def next(self) -> tuple[dict[str, Any], Any] | None:
        """The call that begins now; None when it is time to speak with the lab."""
        with self._guard:
            if not self._ahead or (self._ends and time.monotonic() > self._until):
                return None
            header, body = self._ahead.popleft()
            self._call = header["call"]
            return header, body

    @property
    def more(self) -> bool:
        """True when another call is at hand."""
        return bool(self._ahead)

    def ended(self, told: list[Any]) -> None:
        """The call has ended: this is what the lab is to be told."""
        with self._guard:
            self._ends.append(told)

    def give_back(self) -> list[list[Any]]:
        """Begin no other call of this hand; return all ends that the lab has not been told."""
        with self._guard:
            self._ahead.clear()
            ends, self._ends = self._ends, []
            return ends

    def keep_one(self, lab: Lab) -> None:
        """The call takes long: tell the lab what has ended before it, and give back what waits behind it."""
        with self._guard:
            if self._ahead or self._ends:
                self._ahead.clear()
                Bodies(lab, self._pool).tell(self._ends, [self._call])
                self._ends = []
