"""What came of repeating jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import sqlalchemy as sa

from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.comparison import Verification
from carrel.core.domain.serial import from_plain, to_plain
from carrel.lab.store.database import Database
from carrel.lab.store.outbox import insert_entries
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import verifications


class VerificationTable:
    """Implements `carrel.core.control.verifications.VerificationStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        #: All there are: few jobs are verified, and every look at a job asks. None: not read yet.
        self._known: dict[int, Verification] | None = None
        self._guard = threading.Lock()

    def put(self, job_id: int, verification: Verification, outbox: Sequence[OutboxEntry], *, now: float) -> None:
        """Keep it in the place of an earlier one, and what there is to tell the tracking server."""
        row = {"job_id": job_id, "value": dump(to_plain(verification))}
        with self._guard, self._database.write() as connection:
            connection.execute(sa.delete(verifications).where(verifications.c.job_id == job_id))
            connection.execute(sa.insert(verifications), row)
            insert_entries(connection, job_id, outbox, now)
            self._known = None

    def get(self, job_id: int) -> Verification | None:
        """The last one of the job, or None."""
        known = self._known
        if known is None:
            with self._guard, self._database.read() as connection:
                rows = connection.execute(sa.select(verifications)).all()
                known = self._known = {row.job_id: from_plain(Verification, json.loads(row.value)) for row in rows}
        return known.get(job_id)
