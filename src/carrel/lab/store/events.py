"""The event table, and those who wait for what is new in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from carrel.core.control.event_ports import Event, NewEvent
from carrel.lab.store.database import Database
from carrel.lab.store.known import Known
from carrel.lab.store.rows import dump, event_of
from carrel.lab.store.tables import events


class EventTable:
    """Implements `carrel.core.control.event_ports.EventStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: Known[int, int] = Known(database, events, most=1)
        self._guard = threading.Lock()
        self._subscribers: dict[object, Callable[[], None]] = {}

    def append(self, new: Sequence[NewEvent], *, now: float) -> None:
        """Add events that belong to no other change, and tell the subscribers."""
        if new:
            with self._database.write() as connection:
                insert_events(connection, new, now)
            self.announce()

    def after(self, event_id: int, *, job_id: int | None, owner: str | None, limit: int) -> Sequence[Event]:
        """Events with larger ids, oldest first."""
        query = sa.select(events).where(events.c.id > event_id).order_by(events.c.id).limit(limit)
        if job_id is not None:
            query = query.where(events.c.job_id == job_id)
        if owner is not None:
            query = query.where(events.c.owner == owner)
        with self._database.read() as connection:
            return [event_of(row) for row in connection.execute(query)]

    def last_id(self) -> int:
        """Id of the newest event, or 0."""
        return self._last.read(0, self._last_id) or 0

    def _last_id(self) -> int:
        with self._database.read() as connection:
            return connection.execute(sa.select(sa.func.max(events.c.id))).scalar() or 0

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every commit of events, until the returned function is called."""
        token = object()
        with self._guard:
            self._subscribers[token] = callback

        def unsubscribe() -> None:
            with self._guard:
                self._subscribers.pop(token, None)

        return unsubscribe

    def announce(self) -> None:
        """Tell the subscribers that events were committed; called after the transaction, never inside it."""
        with self._guard:
            callbacks = list(self._subscribers.values())
        for callback in callbacks:
            callback()


def insert_events(connection: sa.Connection, new: Sequence[NewEvent], now: float) -> None:
    """Add events in the caller's transaction."""
    rows: list[dict[str, Any]] = [
        {"at": now, "job_id": event.job_id, "owner": event.owner, "type": event.type, "data": dump(dict(event.data))}
        for event in new
    ]
    if rows:
        connection.execute(sa.insert(events), rows)
