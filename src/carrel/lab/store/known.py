"""What was read, for as long as nothing has been written to the tables that it came from."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import sqlalchemy as sa

from carrel.core.domain.ports import Clock
from carrel.lab.store.database import Database

#: Seconds after which it is read again in any case: what somebody changes in the database by hand is seen by then.
LIFETIME = 1.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Known(Generic[K, V]):
    """Values by key, each as new as a read of the database. Thread-safe.

    A write of this process to one of the tables voids all of them before it returns, and nobody else writes: a lab is one
    process. A value must not be changed by who gets it.
    """

    def __init__(
        self,
        database: Database,
        *tables: sa.Table,
        most: int,
        fits: Callable[[V], bool] = lambda _value: True,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """`most` are remembered, the newest, of those that are not too large (`fits`)."""
        self._database = database
        self._tables = tuple(table.name for table in tables)
        self._most = most
        self._fits = fits
        self._monotonic = monotonic
        self._guard = threading.Lock()
        self._found: OrderedDict[K, tuple[int, float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value, if it is remembered and still true."""
        entry = self._found.get(key)
        if entry is None or entry[0] != self._database.version(self._tables) or self._monotonic() - entry[1] >= LIFETIME:
            return None
        return entry[2]

    def read(self, key: K, read: Callable[[], V | None]) -> V | None:
        """The value, read when it is not remembered. That there is none is not remembered."""
        known = self.get(key)
        if known is not None:
            return known
        # Before it is read: what is written meanwhile makes it old at once, whether the read has seen that or not.
        version, now = self._database.version(self._tables), self._monotonic()
        value = read()
        if value is not None and self._fits(value):
            with self._guard:
                self._found.pop(key, None)
                self._found[key] = (version, now, value)
                while len(self._found) > self._most:
                    self._found.popitem(last=False)
        return value
