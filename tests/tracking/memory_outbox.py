"""An outbox for tests of the shipper, without a database."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from carrel.lab.store.outbox import OutboxRow


class MemoryOutbox:
    """As `carrel.lab.store.outbox.OutboxTable`, but it lasts as long as its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[int, OutboxRow] = {}
        self._last = 0
        #: Message by item, of those that were refused.
        self.refused: dict[int, str] = {}
        #: Run id and experiment id by job.
        self.runs: dict[int, tuple[str, str]] = {}

    def add(self, job_id: int, entries: Iterable[tuple[str, Mapping[str, Any]]]) -> list[int]:
        """Append items of a job; returns their ids."""
        ids = []
        with self._lock:
            for kind, payload in entries:
                self._last += 1
                self._items[self._last] = OutboxRow(id=self._last, job_id=job_id, kind=kind, payload=payload)
                ids.append(self._last)
        return ids

    def pending(self, limit: int) -> Sequence[OutboxRow]:
        with self._lock:
            return list(self._items.values())[:limit]

    def last(self) -> int:
        with self._lock:
            return max(self._items, default=0)

    def done(self, ids: Sequence[int]) -> None:
        with self._lock:
            for item_id in ids:
                self._items.pop(item_id, None)

    def failed(self, item_id: int, message: str) -> None:
        with self._lock:
            self._items.pop(item_id, None)
            self.refused[item_id] = message

    def run_of(self, job_id: int) -> tuple[str, str] | None:
        with self._lock:
            return self.runs.get(job_id)

    def set_run(self, job_id: int, run_id: str, experiment_id: str) -> None:
        with self._lock:
            self.runs[job_id] = (run_id, experiment_id)
