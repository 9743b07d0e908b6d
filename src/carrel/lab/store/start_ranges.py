"""What people saw of start times, and how that turned out."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from carrel.core.domain.expectation import ShownRange
from carrel.core.domain.job import JobState
from carrel.core.policy.calibration import NEWEST
from carrel.lab.store.database import Database
from carrel.lab.store.tables import attempts, jobs, start_ranges


class StartRangeTable:
    """Implements `carrel.core.control.start_ranges.StartRangeStore`. It keeps the newest `NEWEST` starts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def load(self) -> Sequence[ShownRange]:
        """Return the newest starts in their order, then the ranges of jobs that wait.

        A server that was killed between a start and its note here has left the lease: the start is taken from it.
        """
        table = start_ranges.c
        with self._database.write() as connection:
            leased = (
                sa.select(sa.func.min(attempts.c.leased_at))
                .where(attempts.c.job_id == table.job_id, attempts.c.leased_at >= table.shown_at)
                .scalar_subquery()
            )
            connection.execute(sa.update(start_ranges).where(table.started_at.is_(None)).values(started_at=leased))
            waits = sa.select(jobs.c.id).where(jobs.c.state.in_((JobState.PENDING, JobState.SUSPENDED)))
            connection.execute(sa.delete(start_ranges).where(table.started_at.is_(None), table.job_id.not_in(waits)))
            _drop_old(connection)
            rows = connection.execute(sa.select(start_ranges).order_by(table.started_at.is_(None), table.started_at, table.id))
            return [
                ShownRange(
                    job_id=row.job_id,
                    shown_at=row.shown_at,
                    foreseen=(row.foreseen_low, row.foreseen, row.foreseen_high),
                    low=row.low,
                    high=row.high,
                    started_at=row.started_at,
                )
                for row in rows
            ]

    def write(self, shown: Sequence[ShownRange], over: Sequence[int]) -> None:
        """Write down ranges that were shown, or their starts; forget those of jobs that are over without a start."""
        table = start_ranges.c
        with self._database.write() as connection:
            for one in shown:
                same = (table.job_id == one.job_id, table.shown_at == one.shown_at)
                connection.execute(sa.delete(start_ranges).where(*same))
                connection.execute(sa.insert(start_ranges), _row(one))
            if over:
                connection.execute(sa.delete(start_ranges).where(table.started_at.is_(None), table.job_id.in_(over)))
            if any(one.started_at is not None for one in shown):
                _drop_old(connection)


def _drop_old(connection: sa.Connection) -> None:
    table = start_ranges.c
    started = table.started_at.is_not(None)
    newest = sa.select(table.id).where(started).order_by(table.started_at.desc(), table.id.desc()).limit(NEWEST)
    connection.execute(sa.delete(start_ranges).where(started, table.id.not_in(newest)))


def _row(one: ShownRange) -> dict[str, float | int | None]:
    low, middle, high = one.foreseen
    return {
        "job_id": one.job_id,
        "shown_at": one.shown_at,
        "foreseen_low": low,
        "foreseen": middle,
        "foreseen_high": high,
        "low": one.low,
        "high": one.high,
        "started_at": one.started_at,
    }
