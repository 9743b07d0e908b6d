"""What the shipper needs of the outbox. The store has the durable one; the one in memory is for tests and trials."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

#: Kinds of items and what is in their payloads, beside "owner" (a subject), which all of them have.
KINDS: dict[str, str] = {
    "create_run": "experiment (name or None), run_name, start_time (Unix ms), tags, params, user, adopt (run id or None), "
    "parent (of a trial: run_name, start_time and tags of its sweep's run)",
    "update": "any of metrics ([{key, value, timestamp (Unix ms), step}]), params, tags",
    "artifact": "artifact_path, and path (of a file of the lab's) or text",
    "record": "artifact_path; the record is made when it is sent",
    "end_run": "status (FINISHED, FAILED or KILLED), end_time (Unix ms)",
    "sweep": "parent (as in create_run), experiment, status (also RUNNING), end_time (or None)",
}


class OutboxItem(Protocol):
    """One thing to tell MLflow."""

    @property
    def id(self) -> int:
        """Its place in the order."""
        ...

    @property
    def job_id(self) -> int:
        """The job that it is about."""
        ...

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        ...

    @property
    def payload(self) -> Mapping[str, Any]:
        """JSON-ready."""
        ...


class Outbox(Protocol):
    """Items in the order in which they were written, until MLflow has them or has refused them."""

    def pending(self, limit: int) -> Sequence[OutboxItem]:
        """The oldest items that are neither done nor failed."""
        ...

    def last(self) -> int:
        """The number of the newest item that still has to be sent; 0 where there is none."""
        ...

    def done(self, ids: Sequence[int]) -> None:
        """MLflow has these."""
        ...

    def failed(self, item_id: int, message: str) -> None:
        """MLflow refused this for good, in its own words."""
        ...

    def run_of(self, job_id: int) -> tuple[str, str] | None:
        """Run id and experiment id of the job, or None while there is no run."""
        ...

    def set_run(self, job_id: int, run_id: str, experiment_id: str) -> None:
        """The job's run exists."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """An `OutboxItem`."""

    id: int
    job_id: int
    kind: str
    payload: Mapping[str, Any]


class MemoryOutbox:
    """An `Outbox` that lasts as long as its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: dict[int, MemoryItem] = {}
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
                self._items[self._last] = MemoryItem(id=self._last, job_id=job_id, kind=kind, payload=payload)
                ids.append(self._last)
        return ids

    def pending(self, limit: int) -> Sequence[MemoryItem]:
        """See `Outbox`."""
        with self._lock:
            return list(self._items.values())[:limit]

    def last(self) -> int:
        """See `Outbox`."""
        with self._lock:
            return max(self._items, default=0)

    def done(self, ids: Sequence[int]) -> None:
        """See `Outbox`."""
        with self._lock:
            for item_id in ids:
                self._items.pop(item_id, None)

    def failed(self, item_id: int, message: str) -> None:
        """See `Outbox`."""
        with self._lock:
            self._items.pop(item_id, None)
            self.refused[item_id] = message

    def run_of(self, job_id: int) -> tuple[str, str] | None:
        """See `Outbox`."""
        with self._lock:
            return self.runs.get(job_id)

    def set_run(self, job_id: int, run_id: str, experiment_id: str) -> None:
        """See `Outbox`."""
        with self._lock:
            self.runs[job_id] = (run_id, experiment_id)
