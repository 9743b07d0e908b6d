"""When cells of sessions had GPUs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.nouns import CELLS
from carrel.lab.store.database import Database
from carrel.lab.store.records import Rows
from carrel.lab.store.tables import cells, jobs

_log = logging.getLogger(__name__)
_Key = tuple[str, int, float]


class CellTable:
    """Implements `carrel.core.control.cells.CellStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._rows = Rows(cells, CELLS)

    def add(self, found: Sequence[RecordedCell]) -> None:
        """Write down what is not there yet. Of jobs that this lab does not have nothing is written."""
        if not found:
            return
        with self._database.write() as connection:
            known = self._known(connection, found)
            ours = set(connection.execute(sa.select(jobs.c.id).where(jobs.c.id.in_({cell.session for cell in found}))).scalars())
            rows = [self._rows.row(cell) for cell in found if _key(cell) not in known and cell.session in ours]
            if rows:
                connection.execute(sa.insert(cells), rows)
        strange = sorted({cell.session for cell in found} - ours)
        if strange:
            _log.warning("A broker speaks of cells of jobs that this lab does not have: %s.", ", ".join(map(str, strange)))

    def list(
        self, *, owner: str | None = None, since: float | None = None, after: int = 0, limit: int = 1000
    ) -> Sequence[RecordedCell]:
        """Those that were written down after `after`, in that order: of this `owner`, asked for at `since` or later."""
        query = sa.select(cells, jobs.c.owner).join(jobs).where(cells.c.id > after).order_by(cells.c.id).limit(limit)
        if owner is not None:
            query = query.where(jobs.c.owner == owner)
        if since is not None:
            query = query.where(cells.c.asked_at >= since)
        with self._database.read() as connection:
            found = connection.execute(query).mappings().all()
        return [replace(self._rows.read(row), owner=row[jobs.c.owner]) for row in found]

    def missing(self) -> int:
        """How many brokers have told of no more, between the first and the last that is kept of each."""
        spans = (
            sa.select(
                (sa.func.max(cells.c.number) - sa.func.min(cells.c.number) + 1 - sa.func.count(cells.c.number.distinct())).label(
                    "missing"
                )
            )
            .group_by(cells.c.broker)
            .subquery()
        )
        with self._database.read() as connection:
            return int(connection.execute(sa.select(sa.func.coalesce(sa.func.sum(spans.c.missing), 0))).scalar_one())

    @staticmethod
    def _known(connection: sa.Connection, found: Sequence[RecordedCell]) -> set[_Key]:
        known: set[_Key] = set()
        for broker in {cell.broker for cell in found}:
            numbers = [cell.number for cell in found if cell.broker == broker]
            query = sa.select(cells.c.number, cells.c.asked_at).where(
                cells.c.broker == broker, cells.c.number.between(min(numbers), max(numbers))
            )
            known |= {(broker, row.number, row.asked_at) for row in connection.execute(query)}
        return known


def _key(cell: RecordedCell) -> _Key:
    """What identifies one cell."""
    return cell.broker, cell.number, cell.asked_at
