"""Sweeps in the database: tables and queries."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, CheckConstraint, Column, Double, ForeignKey, Index, Integer, String, Table, Text, text
from sqlalchemy.dialects import postgresql, sqlite

from carrel.core.control.ports import OutboxEntry
from carrel.core.domain.errors import NotFound
from carrel.core.domain.serial import from_plain, to_plain
from carrel.core.domain.sweep import Sweep, SweepSpec, SweepState, Trial, TrialState
from carrel.lab.store.database import Database
from carrel.lab.store.events import EventTable
from carrel.lab.store.outbox import insert_entries
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import ID, attempts, metadata

_SWEEP_STATES = ", ".join(f"'{state}'" for state in SweepState)
_TRIAL_STATES = ", ".join(f"'{state}'" for state in TrialState)

sweeps = Table(
    "sweeps",
    metadata,
    Column("id", ID, primary_key=True, autoincrement=True),
    Column("owner", String(255), nullable=False),
    #: A `SweepSpec` as JSON.
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("created_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("resumed_at", Double),
    Column("last_step", BigInteger),
    CheckConstraint(f"state IN ({_SWEEP_STATES})", name="state"),
    Index(None, "owner"),
    sqlite_autoincrement=True,
)

trials = Table(
    "trials",
    metadata,
    Column("sweep_id", ForeignKey("sweeps.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("parameters", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("job_id", ForeignKey("jobs.id"), unique=True),
    Column("value", Double),
    Column("message", Text, nullable=False, server_default=text("''")),
    Column("created_at", Double, nullable=False),
    #: When its job ended.
    Column("ended_at", Double),
    #: JSON object.
    Column("attributes", Text, nullable=False, server_default=text("'{}'")),
    CheckConstraint(f"state IN ({_TRIAL_STATES})", name="state"),
)

#: What trials reported of the metric.
trial_values = Table(
    "trial_values",
    metadata,
    Column("sweep_id", ForeignKey("sweeps.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
)


#: Sweeps that are removed by one statement.
_MANY = 500


class SweepTable:
    """Implements `carrel.core.control.sweep_ports.SweepStore`."""

    def __init__(self, database: Database, events: EventTable) -> None:
        self._database = database
        self._events = events

    def add(self, owner: str, spec: SweepSpec, *, now: float) -> Sweep:
        """Write a sweep down."""
        row = {"owner": owner, "spec": dump(to_plain(spec)), "state": SweepState.RUNNING.value, "created_at": now}
        with self._database.write() as connection:
            number = connection.execute(sa.insert(sweeps).returning(sweeps.c.id), row).scalar_one()
        return Sweep(id=number, owner=owner, spec=spec, created_at=now)

    def change(self, sweep: Sweep, *, job_id: int | None = None, told: Sequence[OutboxEntry] = (), now: float = 0.0) -> None:
        """The sweep is as it is here, and the tracking server is to be told so, after what it is told of that job.

        Raises `NotFound` for one that was removed.
        """
        values = {
            "spec": dump(to_plain(sweep.spec)),
            "state": sweep.state.value,
            "message": sweep.message,
            "ended_at": sweep.ended_at,
            "resumed_at": sweep.resumed_at,
            "last_step": sweep.last_step,
        }
        with self._database.write() as connection:
            if not connection.execute(sa.update(sweeps).where(sweeps.c.id == sweep.id).values(values)).rowcount:
                raise NotFound(f"There is no sweep {sweep.id} any more.", remedy="`carrel sweep list` shows yours.")
            if job_id is not None:
                insert_entries(connection, job_id, told, now)
        if told:
            self._events.announce()

    def get(self, sweep_id: int) -> Sweep | None:
        """The sweep, or None."""
        return next(iter(self._read(sa.select(sweeps).where(sweeps.c.id == sweep_id))), None)

    def list(self, *, owner: str | None, limit: int, before: int | None = None) -> Sequence[Sweep]:
        """Newest first, of everybody or of one; numbers smaller than `before`."""
        query = sa.select(sweeps).order_by(sweeps.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(sweeps.c.id < before)
        return self._read(query if owner is None else query.where(sweeps.c.owner == owner))

    def unfinished(self) -> Sequence[Sweep]:
        """Those that run, or have trials whose jobs have not ended."""
        going_on = sa.exists().where(trials.c.sweep_id == sweeps.c.id, trials.c.ended_at.is_(None))
        return self._read(sa.select(sweeps).where((sweeps.c.state == SweepState.RUNNING.value) | going_on).order_by(sweeps.c.id))

    # ---- trials

    def add_trial(self, sweep_id: int, trial: Trial) -> None:
        """Write a trial down, before its job is submitted."""
        row = {
            "sweep_id": sweep_id,
            "number": trial.number,
            "parameters": dump(dict(trial.parameters)),
            "created_at": trial.created_at,
            **_changing(trial),
        }
        with self._database.write() as connection:
            connection.execute(sa.insert(trials), row)

    def change_trial(self, sweep_id: int, trial: Trial) -> None:
        """The trial is as it is here."""
        change = sa.update(trials).where(trials.c.sweep_id == sweep_id, trials.c.number == trial.number)
        with self._database.write() as connection:
            connection.execute(change.values(_changing(trial)))

    def trials(self, sweep_id: int) -> Sequence[Trial]:
        """All trials of a sweep, in their order."""
        query = sa.select(trials).where(trials.c.sweep_id == sweep_id).order_by(trials.c.number)
        with self._database.read() as connection:
            return [_trial(row) for row in connection.execute(query)]

    def counts(self, sweep_ids: Sequence[int]) -> Mapping[int, Mapping[str, int]]:
        """How many trials of each of these sweeps are in each state."""
        query = (
            sa.select(trials.c.sweep_id, trials.c.state, sa.func.count())
            .where(trials.c.sweep_id.in_(sweep_ids))
            .group_by(trials.c.sweep_id, trials.c.state)
        )
        found: dict[int, dict[str, int]] = {number: {} for number in sweep_ids}
        with self._database.read() as connection:
            for sweep_id, state, count in connection.execute(query):
                found[sweep_id][state] = count
        return found

    def add_values(self, sweep_id: int, number: int, values: Mapping[int, float]) -> None:
        """A trial reported these values, by their steps; a step that comes again has the newer value."""
        rows = [{"sweep_id": sweep_id, "number": number, "step": step, "value": value} for step, value in values.items()]
        if not rows:
            return
        with self._database.write() as connection:
            insert: Any = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(trial_values)
            keys = ["sweep_id", "number", "step"]
            connection.execute(insert.on_conflict_do_update(index_elements=keys, set_={"value": insert.excluded.value}), rows)

    def values(self, sweep_id: int) -> Mapping[int, Mapping[int, float]]:
        """What the trials of a sweep reported: values by step, by the trials' numbers."""
        query = (
            sa.select(trial_values)
            .where(trial_values.c.sweep_id == sweep_id)
            .order_by(trial_values.c.number, trial_values.c.step)
        )
        found: dict[int, dict[int, float]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query):
                found.setdefault(row.number, {})[row.step] = row.value
        return found

    # ---- those that are old

    def old(self, before: float) -> Sequence[int]:
        """Sweeps that were over before that moment, as were all their jobs; none of these has outputs to be collected."""
        with self._database.read() as connection:
            return list(connection.execute(_old(before)).scalars())

    def drop_old(self, before: float) -> None:
        """Forget them, with their trials; the jobs stay."""
        with self._database.write() as connection:
            found = list(connection.execute(_old(before)).scalars())
            for begin in range(0, len(found), _MANY):
                some = found[begin : begin + _MANY]
                for column in (trial_values.c.sweep_id, trials.c.sweep_id, sweeps.c.id):
                    connection.execute(sa.delete(column.table).where(column.in_(some)))

    def _read(self, query: sa.Select[Any]) -> Sequence[Sweep]:
        with self._database.read() as connection:
            return [_sweep(row) for row in connection.execute(query)]


def _old(before: float) -> sa.Select[int]:
    kept = (
        sa.select(trials.c.number)
        .select_from(trials.outerjoin(attempts, attempts.c.job_id == trials.c.job_id))
        .where(
            trials.c.sweep_id == sweeps.c.id,
            sa.or_(trials.c.ended_at.is_(None), trials.c.ended_at >= before, attempts.c.uncollected != 0),
        )
    )
    over = sa.and_(sweeps.c.state != SweepState.RUNNING.value, sweeps.c.ended_at < before)
    return sa.select(sweeps.c.id).where(over, ~kept.exists()).order_by(sweeps.c.id)


def _sweep(row: sa.Row[Any]) -> Sweep:
    return Sweep(
        id=row.id,
        owner=row.owner,
        spec=from_plain(SweepSpec, json.loads(row.spec)),
        state=SweepState(row.state),
        message=row.message,
        created_at=row.created_at,
        ended_at=row.ended_at,
        resumed_at=row.resumed_at,
        last_step=row.last_step,
    )


def _changing(trial: Trial) -> dict[str, Any]:
    return {
        "state": trial.state.value,
        "job_id": trial.job_id,
        "value": trial.value,
        "message": trial.message,
        "ended_at": trial.ended_at,
        "attributes": dump(dict(trial.attributes)),
    }


def _trial(row: sa.Row[Any]) -> Trial:
    return Trial(
        number=row.number,
        parameters=json.loads(row.parameters),
        state=TrialState(row.state),
        job_id=row.job_id,
        value=row.value,
        message=row.message,
        created_at=row.created_at,
        ended_at=row.ended_at,
        attributes=json.loads(row.attributes),
    )
