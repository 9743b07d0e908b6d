"""How much of the node's host memory and of the disk behind it GPU state may take, and how much of that is left."""

from __future__ import annotations

from carrel.core.domain.lease import Residency
from carrel.node.broker.core.ledger import Ledger
from carrel.node.broker.core.rows import TenantRow

_MOVED = frozenset({Residency.SUSPENDED, Residency.SPILLING, Residency.RESUMING})
_TO_DISK = frozenset({Residency.SPILLING, Residency.SPILLED})
_BETWEEN = frozenset({Residency.SUSPENDING, Residency.RESUMING})


class HostRoom:
    """Room for states in host memory. Bytes throughout; None: as much as anybody wants."""

    def __init__(self, ledger: Ledger, limit: int | None, *, past_host: bool) -> None:
        """`limit`: how much states may take in all. `past_host`: states come back from the disk without lying here."""
        self._ledger = ledger
        self._limit = limit
        self._past_host = past_host
        #: How much is free for more, beside the limit, as last reported.
        self.free: int | None = None

    @property
    def used(self) -> int:
        """What states take that were moved, and what is kept for those that come from the disk."""
        rows = self._ledger.tenants.values()
        coming = 0 if self._past_host else sum(_size(row) for row in rows if row.residency is Residency.RESUMING and row.on_disk)
        return self._there() + coming

    def _there(self) -> int:
        return sum(_size(row) for row in self._ledger.tenants.values() if row.residency in _MOVED and not row.on_disk)

    def limit(self) -> int | None:
        """What states may take in all."""
        free = self.free
        if free is None:
            return self._limit
        return self._there() + free if self._limit is None else min(self._there() + free, self._limit)

    def left(self) -> int | None:
        """What is left for those that have not begun to move."""
        limit = self.limit()
        if limit is None:
            return None
        rows = self._ledger.tenants.values()
        leaving = sum(_size(row) for row in rows if row.residency is Residency.SUSPENDING and not row.on_disk)
        return max(0, limit - self.used - leaving)


class DiskRoom:
    """Room for states on the disk, for which host memory has none. 0 bytes where there is no such place."""

    def __init__(self, ledger: Ledger, limit: int) -> None:
        self._ledger = ledger
        self.limit = limit
        #: How much the disk has left for more, as last told; None: nobody need care.
        self.free: int | None = None

    @property
    def used(self) -> int:
        """What states take that are there or on their way, and those that come back until they are off it."""
        rows = self._ledger.tenants.values()
        return sum(_size(row) for row in rows if row.residency in _TO_DISK or (row.on_disk and row.residency in _BETWEEN))

    def left(self) -> int:
        """What is left for more."""
        left = self.limit - self.used
        return max(0, left if self.free is None else min(left, self.free))


def _size(row: TenantRow) -> int:
    return sum(row.state.values())
