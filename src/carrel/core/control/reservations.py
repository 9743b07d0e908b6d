"""Nodes that are kept for some people between two moments, because an administrator said so. They outlive the server."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from carrel.core.domain.reservation import Reservation


class ReservationStore(Protocol):
    """Which nodes are kept for whom, and when."""

    def put(self, reservation: Reservation) -> None:
        """Keep it; one of the same name is replaced."""
        ...

    def remove(self, name: str) -> bool:
        """It is gone; returns whether it was there."""
        ...

    def all(self) -> Sequence[Reservation]:
        """All of them, also those that are over, the first to begin first."""
        ...


class Reservations:
    """What the store knows, in memory. Thread-safe."""

    def __init__(self, store: ReservationStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known = tuple(store.all())

    def put(self, reservation: Reservation, *, now: float) -> bool:
        """Keep it from now on; return whether there was none like it. One of the same name is replaced."""
        with self._lock:
            if reservation in self._known:
                return False
            self._store.put(reservation)
            self._forget_past(now)
        return True

    def remove(self, name: str, *, now: float) -> bool:
        """Keep it no longer; return whether it was there."""
        with self._lock:
            removed = self._store.remove(name)
            self._forget_past(now)
        return removed

    def _forget_past(self, now: float) -> None:
        for one in self._store.all():
            if one.end <= now:
                self._store.remove(one.name)
        self._known = tuple(self._store.all())

    def all(self) -> Sequence[Reservation]:
        """All of them, the first to begin first; the same ones give the very same answer. Some may be over."""
        return self._known
