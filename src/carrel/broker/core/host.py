"""How much of the node's host memory GPU state may take, and how much of that is left."""

from __future__ import annotations

from carrel.broker.core.book import Book
from carrel.domain.lease import Residency

_MOVED = frozenset({Residency.SUSPENDED, Residency.RESUMING})


class HostRoom:
    """Room for states in host memory. Bytes throughout; None: as much as anybody wants."""

    def __init__(self, book: Book, limit: int | None) -> None:
        """`limit`: how much states may take in all."""
        self._book = book
        self._limit = limit
        #: How much is free for more, whatever the limit says, as last told.
        self.free: int | None = None

    @property
    def used(self) -> int:
        """What states take that were moved."""
        return sum(sum(row.state.values()) for row in self._book.tenants.values() if row.residency in _MOVED)

    def limit(self) -> int | None:
        """What states may take in all."""
        free = self.free
        if free is None:
            return self._limit
        return self.used + free if self._limit is None else min(self.used + free, self._limit)

    def left(self) -> int | None:
        """What is left for those that have not begun to move."""
        limit = self.limit()
        if limit is None:
            return None
        rows = self._book.tenants.values()
        leaving = sum(sum(row.state.values()) for row in rows if row.residency is Residency.SUSPENDING)
        return max(0, limit - self.used - leaving)
