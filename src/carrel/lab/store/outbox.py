"""What the lab has still to tell the tracking server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from carrel.core.control.event_ports import NewEvent
from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.ports import Clock
from carrel.lab.store.database import Database
from carrel.lab.store.events import EventTable, insert_events
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import jobs, outbox

#: Kinds of items and what is in their payloads, beside "owner" (a subject), which all of them have.
KINDS: dict[str, str] = {
    "create_run": "experiment (name or None), run_name, start_time (Unix ms), tags, params, user, adopt (run id or None), "
    "parent (of a trial or a variant: naming (tags), run_name, start_time and tags of the run of its sweep or search)",
    "update": "any of metrics ([{key, value, timestamp (Unix ms), step}]), params, tags",
    "artifact": "artifact_path, and path (of a file of the lab's) or text",
    "record": "artifact_path; the record is made when it is sent",
    "end_run": "status (FINISHED, FAILED or KILLED), end_time (Unix ms)",
    "parent": "parent (as in create_run), experiment, tags, status (also RUNNING), end_time (or None)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """One thing to tell, with its place in the order."""

    id: int
    job_id: int
    #: One of `KINDS`.
    kind: str
    payload: Mapping[str, Any]


class OutboxTable:
    """Items in the order in which they were written; an item is removed when the tracking server has it."""

    def __init__(self, database: Database, events: EventTable, clock: Clock) -> None:
        self._database = database
        self._events = events
        self._clock = clock

    def add(self, job_id: int, entries: Sequence[OutboxEntry], *, now: float) -> None:
        """Add items that belong to no other change."""
        with self._database.write() as connection:
            insert_entries(connection, job_id, entries, now)
        self._events.announce()

    def pending(self, limit: int) -> Sequence[OutboxRow]:
        """The oldest items that still have to be sent."""
        query = sa.select(outbox).where(outbox.c.error.is_(None)).order_by(outbox.c.id).limit(limit)
        with self._database.read() as connection:
            return [
                OutboxRow(id=row.id, job_id=row.job_id, kind=row.kind, payload=json.loads(row.payload))
                for row in connection.execute(query)
            ]

    def last(self) -> int:
        """The number of the newest item that still has to be sent; 0 where there is none."""
        with self._database.read() as connection:
            return int(connection.execute(sa.select(sa.func.max(outbox.c.id)).where(outbox.c.error.is_(None))).scalar() or 0)

    def done(self, ids: Sequence[int]) -> None:
        """The tracking server has these."""
        if ids:
            with self._database.write() as connection:
                connection.execute(sa.delete(outbox).where(outbox.c.id.in_(list(ids))))

    def failed(self, item_id: int, message: str) -> None:
        """The tracking server refused this for good, in its own words."""
        with self._database.write() as connection:
            connection.execute(sa.update(outbox).where(outbox.c.id == item_id).values(error=message))

    def refused(self, job_id: int) -> Sequence[str]:
        """What the tracking server said of items of the job that it refused."""
        query = sa.select(outbox.c.error).where(outbox.c.job_id == job_id, outbox.c.error.is_not(None)).order_by(outbox.c.id)
        with self._database.read() as connection:
            return [str(error) for error in connection.execute(query).scalars()]

    def run_of(self, job_id: int) -> tuple[str, str] | None:
        """Run id and experiment id of the job, or None while there is no run."""
        query = sa.select(jobs.c.run_id, jobs.c.experiment_id).where(jobs.c.id == job_id)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None or row.run_id is None else (row.run_id, row.experiment_id)

    def set_run(self, job_id: int, run_id: str, experiment_id: str) -> None:
        """The job's run exists; its owner and a runner that waits for it learn so."""
        change = (
            sa.update(jobs).where(jobs.c.id == job_id).values(run_id=run_id, experiment_id=experiment_id).returning(jobs.c.owner)
        )
        with self._database.write() as connection:
            owner = connection.execute(change).scalar_one()
            data = {"message": f"MLflow run {run_id}", "reason": "Tracked"}
            told = NewEvent(job_id=job_id, owner=owner, type="progress", data=data)
            insert_events(connection, [told], self._clock())
        self._events.announce()


def insert_entries(connection: sa.Connection, job_id: int, entries: Sequence[OutboxEntry], now: float) -> None:
    """Add items in the caller's transaction."""
    if entries:
        rows = [
            {"job_id": job_id, "kind": entry.kind, "payload": dump(dict(entry.payload)), "created_at": now} for entry in entries
        ]
        connection.execute(sa.insert(outbox), rows)
