"""Baselines of projects, what calibrations of them came to, and what came of repeating jobs."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.baseline import Baseline, Calibration
from carrel.core.domain.comparison import Verification
from carrel.core.domain.serial import from_plain, to_plain
from carrel.lab.store.database import Database
from carrel.lab.store.events import EventTable
from carrel.lab.store.outbox import insert_entries
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import baselines, calibrations, verifications

#: Jobs that are asked for in one statement.
_AT_ONCE = 500


class BaselineTable:
    """Implements `carrel.core.control.baselines.BaselineStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, *, owner: str, project: str, job: int, tolerance: float, ignored: Sequence[str], now: float) -> Baseline:
        """Keep it in the place of an earlier one of that owner and project, which goes with its calibrations."""
        row = {
            "owner": owner,
            "project": project,
            "job_id": job,
            "tolerance": tolerance,
            "ignored": dump(list(ignored)),
            "set_at": now,
        }
        with self._database.write() as connection:
            same = sa.and_(baselines.c.owner == owner, baselines.c.project == project)
            earlier = connection.execute(sa.select(baselines.c.id).where(same)).scalar()
            if earlier is not None:
                _remove(connection, earlier)
            number = connection.execute(sa.insert(baselines).values(row).returning(baselines.c.id)).scalar_one()
            return _baseline(connection.execute(sa.select(baselines).where(baselines.c.id == number)).one())

    def get(self, baseline_id: int) -> Baseline | None:
        """The baseline, or None."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(baselines).where(baselines.c.id == baseline_id)).first()
        return None if row is None else _baseline(row)

    def list(self, owner: str | None) -> Sequence[Baseline]:
        """Those of one owner, or all, by owner and project."""
        query = sa.select(baselines).order_by(baselines.c.owner, baselines.c.project)
        if owner is not None:
            query = query.where(baselines.c.owner == owner)
        with self._database.read() as connection:
            return [_baseline(row) for row in connection.execute(query)]

    def remove(self, baseline_id: int) -> None:
        """Forget it with its calibrations; one that is not there is no error."""
        with self._database.write() as connection:
            _remove(connection, baseline_id)

    def calibrations(self, ids: Sequence[int]) -> Mapping[int, Sequence[Calibration]]:
        """Those of each of the baselines, newest first."""
        found: dict[int, list[Calibration]] = {number: [] for number in ids}
        with self._database.read() as connection:
            for some in _pieces(ids):
                query = sa.select(calibrations).where(calibrations.c.baseline_id.in_(some))
                for row in connection.execute(query.order_by(calibrations.c.job_id.desc())):
                    found[row.baseline_id].append(_calibration(row))
        return found

    def begin(self, calibration: Calibration) -> None:
        """Keep one that has begun; one of the same job that is there stays as it is."""
        row = {"job_id": calibration.job, "baseline_id": calibration.baseline, "value": dump(to_plain(calibration))}
        with self._database.write() as connection:
            there = sa.select(calibrations.c.job_id).where(calibrations.c.job_id == calibration.job)
            # It may have been set anew meanwhile.
            whole = sa.select(baselines.c.id).where(baselines.c.id == calibration.baseline)
            if connection.execute(there).first() is None and connection.execute(whole).first() is not None:
                connection.execute(sa.insert(calibrations), row)

    def collect(self, job: int) -> None:
        """Who has begun the calibration of this job knows what came of it."""
        mine = calibrations.c.job_id == job
        with self._database.write() as connection:
            row = connection.execute(sa.select(calibrations).where(mine).with_for_update()).first()
            if row is not None:
                told = replace(_calibration(row), collected=True)
                connection.execute(sa.update(calibrations).where(mine).values(value=dump(to_plain(told))))

    def conclude(self, calibration: Calibration) -> None:
        """Keep what came of it; one that is known already stays as it is."""
        mine = calibrations.c.job_id == calibration.job
        with self._database.write() as connection:
            row = connection.execute(sa.select(calibrations).where(mine).with_for_update()).first()
            if row is not None and _calibration(row).known_at is None:
                connection.execute(sa.update(calibrations).where(mine).values(value=dump(to_plain(calibration))))

    def calibrated_by(self, jobs: Sequence[int]) -> Mapping[int, int]:
        """Which of these jobs calibrate which baseline."""
        found = {}
        with self._database.read() as connection:
            for some in _pieces(jobs):
                query = sa.select(calibrations.c.job_id, calibrations.c.baseline_id).where(calibrations.c.job_id.in_(some))
                found.update({row.job_id: row.baseline_id for row in connection.execute(query)})
        return found


def _pieces(numbers: Sequence[int]) -> Sequence[Sequence[int]]:
    return [numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE)]


def _remove(connection: sa.Connection, baseline_id: int) -> None:
    connection.execute(sa.delete(calibrations).where(calibrations.c.baseline_id == baseline_id))
    connection.execute(sa.delete(baselines).where(baselines.c.id == baseline_id))


def _baseline(row: sa.Row[Any]) -> Baseline:
    return Baseline(
        id=row.id,
        owner=row.owner,
        project=row.project,
        job=row.job_id,
        tolerance=row.tolerance,
        ignored=tuple(json.loads(row.ignored)),
        set_at=row.set_at,
    )


def _calibration(row: sa.Row[Any]) -> Calibration:
    return from_plain(Calibration, json.loads(row.value))


class VerificationTable:
    """Implements `carrel.core.control.verifications.VerificationStore`."""

    def __init__(self, database: Database, events: EventTable) -> None:
        self._database = database
        self._events = events
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
        self._events.announce()  # the tracking server hears of it now

    def get(self, job_id: int) -> Verification | None:
        """The last one of the job, or None."""
        known = self._known
        if known is None:
            with self._guard, self._database.read() as connection:
                rows = connection.execute(sa.select(verifications)).all()
                known = self._known = {row.job_id: from_plain(Verification, json.loads(row.value)) for row in rows}
        return known.get(job_id)
