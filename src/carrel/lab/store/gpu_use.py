"""Reads of what attempts and cells used, row by row: a report of a year never has all of it in memory. Exports read here, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from carrel.core.control.gpu_use import Whose
from carrel.core.domain.exported_attempt import ExportedAttempt
from carrel.core.domain.partition import read_cluster
from carrel.core.domain.qos import JobKind
from carrel.core.gpu_use import AttemptFacts, CellFacts, HeldFacts, LentFacts, Range, StartFacts, WaitFacts
from carrel.lab.store.database import Database
from carrel.lab.store.rows import same
from carrel.lab.store.tables import attempts, cells, events, jobs

#: Rows that are fetched at a time.
_MANY = 1_000
#: Brokers round for how long a cell computed: what is left up to here is no pause. Seconds.
_ROUNDED = 0.01
_BUSY = re.compile(r'"busy":([0-9.]+)')
_PROJECT = sa.case((jobs.c.experiment != "", jobs.c.experiment), else_=jobs.c.name)


class GpuUseTable:
    """Implements `carrel.core.control.gpu_use.GpuUseStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def attempts(self, within: Range, whose: Whose) -> Iterator[AttemptFacts]:
        """All attempts of the jobs that were there in the range, and those jobs that have none."""
        query = sa.select(
            jobs.c.owner,
            jobs.c.account,
            jobs.c.qos,
            jobs.c.kind,
            (jobs.c.gpus * jobs.c.nodes).label("gpus"),
            jobs.c.submitted_at,
            jobs.c.ended_at.label("job_ended_at"),
            jobs.c.attempt.label("last"),
            sa.func.coalesce(attempts.c.number, 0).label("number"),
            sa.or_(attempts.c.number.is_(None), _first()).label("first"),
            sa.func.coalesce(attempts.c.node, "").label("node"),
            sa.func.coalesce(attempts.c.leased_at, jobs.c.submitted_at).label("leased_at"),
            attempts.c.started_at,
            attempts.c.ended_at,
            sa.func.coalesce(attempts.c.state, "").label("state"),
            sa.func.coalesce(attempts.c.lease_seconds, 0.0).label("lease_seconds"),
            sa.func.coalesce(attempts.c.suspended_seconds, 0.0).label("suspended_seconds"),
            jobs.c.suspended_at,
            attempts.c.gpu_busy,
            attempts.c.gpu_sm,
            attempts.c.gpu_energy,
            (jobs.c.memory * jobs.c.nodes).label("memory"),
            attempts.c.memory_peak,
            attempts.c.gpu_memory,
            attempts.c.gpu_memory_peak,
            jobs.c.time,
            sa.func.coalesce(attempts.c.gpu_type, ""),
            _PROJECT,
        ).select_from(jobs.outerjoin(attempts, attempts.c.job_id == jobs.c.id))
        return map(AttemptFacts._make, self._rows(_there(query, within, whose)))

    def lent(self, within: Range, whose: Whose) -> Iterator[LentFacts]:
        """What cells and calls had, as far as it is over. The database adds up those of a week: there may be millions."""
        bounds = sa.select(sa.select(sa.func.min(cells.c.seen_at)).scalar_subquery(), sa.func.max(cells.c.seen_at))
        with self._database.read() as connection:
            first, last = connection.execute(bounds).one()
            if first is None:
                return
            for week in within.weeks(first, last + 1.0):
                yield from map(LentFacts._make, connection.execute(_lent_in(week, within, whose)))

    def new_lent(self, after: int, last: int) -> Iterator[LentFacts]:
        """What everybody's cells and calls had that were written down after `after`, until the one with the number `last`."""
        return map(LentFacts._make, self._rows(_lent(cells.c.id.between(after + 1, last))))

    def last_lent(self) -> int:
        """The number of the one that was written down last."""
        with self._database.read() as connection:
            return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(cells.c.id), 0))).scalar_one())

    def cells(self, within: Range, whose: Whose, session: int | None = None) -> Iterator[CellFacts]:
        """Cells of sessions that were open in the range and have no GPUs of their own, and those sessions that have none; by
        session, and in the order in which they were asked for.
        """
        query = (
            sa.select(
                jobs.c.owner, jobs.c.account, jobs.c.qos, jobs.c.id.label("session"), jobs.c.started_at, jobs.c.ended_at,
                cells.c.asked_at, cells.c.granted_at, cells.c.seen_at, cells.c.computed, cells.c.gpus,
                cells.c.value,
            )
            .select_from(jobs.outerjoin(cells, cells.c.session == jobs.c.id))
            .where(jobs.c.kind == JobKind.SESSION, jobs.c.gpus == 0, jobs.c.started_at.is_not(None))
        )  # fmt: skip
        if session is not None:
            query = query.where(jobs.c.id == session)
        for row in self._rows(_there(query, within, whose).order_by("session", "asked_at")):
            said = row.value or ""
            # In the very words of `carrel.lab.store.rows.dump`: a report reads many.
            busy = _BUSY.search(said)
            yield CellFacts._make((*row[:-1], '"outcome":"input"' in said, None if busy is None else float(busy[1])))

    def held(self, within: Range) -> Iterator[HeldFacts]:
        """Which devices everybody's attempts had, and cells and calls, as far as those are over."""
        of_attempts = (
            sa.select(
                jobs.c.owner, jobs.c.account, attempts.c.devices, attempts.c.leased_at, attempts.c.ended_at,
                sa.func.coalesce(attempts.c.suspended_seconds, 0.0), jobs.c.suspended_at,
            )
            .select_from(jobs.join(attempts, attempts.c.job_id == jobs.c.id))
            .where(attempts.c.devices != "[]", sa.or_(attempts.c.ended_at >= within.begin, attempts.c.ended_at.is_(None)))
        )  # fmt: skip
        of_cells = (
            sa.select(jobs.c.owner, jobs.c.account, cells.c.value, cells.c.granted_at, cells.c.seen_at, cells.c.computed)
            .select_from(cells.join(jobs))
            .where(cells.c.seen_at >= within.begin, cells.c.granted_at < within.end)
        )
        for row in self._rows(_there(of_attempts, within, Whose())):
            yield HeldFacts._make(row)._replace(devices=json.loads(row.devices))
        for row in self._rows(of_cells):
            devices = json.loads(row.value).get("devices", ())
            stopped = row.seen_at - row.granted_at - row.computed
            yield HeldFacts(row.owner, row.account, devices, row.granted_at, row.seen_at, stopped, None)

    def starts(self, within: Range, whose: Whose) -> Iterator[StartFacts]:
        """First attempts that got their place in the range, of jobs that did not wait for others."""
        # In the very words of `carrel.lab.store.rows.dump`.
        of_attempt = sa.literal('{"attempt":').concat(sa.cast(attempts.c.number, sa.String)).concat(',"offset":0,%')
        first_output = (
            sa.select(events.c.at)
            .where(events.c.job_id == jobs.c.id, events.c.type == "log", events.c.data.like(of_attempt))
            .order_by(events.c.id)
            .limit(1)
            .scalar_subquery()
        )
        query = (
            sa.select(
                jobs.c.qos, jobs.c.kind, attempts.c.node, jobs.c.submitted_at,
                attempts.c.leased_at, attempts.c.started_at, first_output, attempts.c.metric_at,
            )
            .select_from(jobs.join(attempts, attempts.c.job_id == jobs.c.id))
            .where(_first(), attempts.c.leased_at >= within.begin, attempts.c.leased_at < within.end, jobs.c.dependency == "")
        )  # fmt: skip
        return map(StartFacts._make, self._rows(_there(query, within, whose)))

    def first_metric(self, job: int, attempt: int, at: float) -> None:
        """The attempt logs a metric; what is known of an earlier one stays."""
        first = (attempts.c.job_id == job, attempts.c.number == attempt, attempts.c.metric_at.is_(None))
        with self._database.write() as connection:
            connection.execute(sa.update(attempts).where(*first), {"metric_at": at})

    def waits(self, within: Range, whose: Whose) -> Iterator[WaitFacts]:
        """What owners of waiting jobs were told, by job and in that order."""
        placed_at = (
            sa.select(sa.func.min(attempts.c.leased_at))
            .where(attempts.c.job_id == jobs.c.id, attempts.c.leased_at >= events.c.at)
            .scalar_subquery()
        )
        query = (
            sa.select(
                jobs.c.qos, jobs.c.id.label("job"), events.c.data, events.c.at,
                sa.func.coalesce(placed_at, jobs.c.ended_at).label("until"), events.c.id.label("place"),
            )
            .select_from(jobs.join(events, events.c.job_id == jobs.c.id))
            # In the very words of the index.
            .where(events.c.type == sa.literal_column("'queue'"))
        )  # fmt: skip
        for row in self._rows(_there(query, within, whose).order_by("job", "place")):
            yield WaitFacts(row.qos, row.job, json.loads(row.data)["reason"], row.at, row.until)

    def exported(
        self, within: Range, whose: Whose, now: float, *, after: int, limit: int
    ) -> tuple[Sequence[ExportedAttempt], int | None]:
        """All attempts of the first `limit` jobs after `after` that were there in the range, by job and number; and the last of
        those jobs, or None where there are no more.
        """
        numbers = sa.select(jobs.c.id).where(
            jobs.c.id > after,
            jobs.c.submitted_at < within.end,
            sa.or_(jobs.c.ended_at >= within.begin, jobs.c.ended_at.is_(None)),
            *_of(whose),
        )
        with self._database.read() as connection:
            there = connection.execute(numbers.order_by(jobs.c.id).limit(limit)).scalars().all()
            found = exported_of(connection.execute(exported_query(there)), now) if there else []
        return found, there[-1] if len(there) == limit else None

    def _rows(self, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> Iterator[sa.Row[Any]]:
        with self._database.read() as connection:
            yield from connection.execution_options(yield_per=_MANY).execute(query)


def _lent_in(week: Range, within: Range, whose: Whose) -> sa.Select[Any]:
    """Cells that ended in a week, or after the range if the week is its last. Those that are not whole in it come one by one."""
    seen, asked = cells.c.seen_at, cells.c.asked_at
    ended = (seen >= week.begin, cells.c.granted_at < within.end if week.end == within.end else seen < week.end)
    whose_jobs = _of(whose)
    of_whom = (cells.c.session.in_(sa.select(jobs.c.id).where(*whose_jobs)),) if whose_jobs else ()
    return _lent(*ended, *of_whom, alone=sa.case((sa.and_(asked >= week.begin, seen <= week.end), 0), else_=cells.c.id))


def _lent(*conditions: sa.ColumnElement[bool], alone: sa.ColumnElement[int] | None = None) -> sa.Select[Any]:
    """Cells added up by job and type of GPU; those with another number in `alone` by themselves."""
    granted, seen, computed = cells.c.granted_at, cells.c.seen_at, cells.c.computed
    by_job = (
        sa.select(
            cells.c.session,
            cells.c.gpu_type,
            sa.func.count().label("cells"),
            sa.func.min(cells.c.asked_at).label("asked_at"),
            sa.func.max(granted).label("since"),
            sa.func.max(seen).label("until"),
            sa.func.sum(_or_0(granted - cells.c.asked_at)).label("waited"),
            sa.func.sum(computed).label("computed"),
            sa.func.sum(_or_0(seen - granted - computed, above=_ROUNDED)).label("paused"),
            sa.func.sum(cells.c.gpus * computed).label("lent"),
        )
        .where(seen > granted, *conditions)
        .group_by(cells.c.session, cells.c.gpu_type, *(() if alone is None else (alone,)))
        .subquery()
    )
    told = by_job.c
    return sa.select(
        jobs.c.owner, jobs.c.account, jobs.c.qos, jobs.c.kind,
        told.cells, told.asked_at, told.since, told.until, told.waited, told.computed, told.paused, told.lent,
        told.gpu_type, sa.func.coalesce(jobs.c.node, ""), _PROJECT,
    ).select_from(by_job.join(jobs, jobs.c.id == told.session))  # fmt: skip


def _or_0(seconds: sa.ColumnElement[float], above: float = 0.0) -> sa.ColumnElement[float]:
    return sa.case((seconds > above, seconds), else_=0.0)


def _first() -> sa.ColumnElement[bool]:
    """No attempt of the job that is kept is earlier. Those that a cluster refused are not kept, so it need not be number 1."""
    earlier = attempts.alias("earlier")
    before = sa.exists().where(earlier.c.job_id == attempts.c.job_id, earlier.c.number < attempts.c.number)
    return sa.or_(attempts.c.number == 1, ~before)


def _there(query: sa.Select[Any], within: Range, whose: Whose) -> sa.CompoundSelect[Any]:
    """Only of jobs that were there in the range. In two parts, each of which has an index; one statement is one view."""
    query = query.where(jobs.c.submitted_at < within.end, *_of(whose))
    return sa.union_all(query.where(jobs.c.ended_at >= within.begin), query.where(jobs.c.ended_at.is_(None)))


def _of(whose: Whose) -> list[sa.ColumnElement[bool]]:
    if whose.owner is None:
        return []
    mine = jobs.c.owner == whose.owner
    return [sa.or_(mine, jobs.c.account.in_(sorted(whose.accounts))) if whose.accounts else mine]


def exported_query(numbers: Sequence[int]) -> sa.Select[Any]:
    """These jobs with all their attempts, by job and number."""
    return (
        sa.select(
            jobs.c.id.label("job"), jobs.c.array_job_id, jobs.c.array_task_id, jobs.c.kind, jobs.c.owner, jobs.c.account,
            jobs.c.qos, jobs.c.partition, jobs.c.name, jobs.c.nodes, jobs.c.cpus, jobs.c.memory, jobs.c.gpus, jobs.c.time,
            jobs.c.dependency, jobs.c.submitted_at, jobs.c.suspended_at, jobs.c.state.label("job_state"),
            jobs.c.ended_at.label("job_ended_at"), attempts.c.number, attempts.c.node, attempts.c.state, attempts.c.exit_code,
            attempts.c.signal, attempts.c.leased_at, attempts.c.started_at, attempts.c.ended_at, attempts.c.suspended_seconds,
            attempts.c.usage,
        )
        .select_from(jobs.outerjoin(attempts, attempts.c.job_id == jobs.c.id))
        .where(jobs.c.id.in_(numbers))
        .order_by(jobs.c.id, attempts.c.number)
    )  # fmt: skip


def exported_of(rows: Iterable[sa.Row[Any]], now: float) -> Sequence[ExportedAttempt]:
    """The rows of that query as attempts."""
    found = []
    for _job, of_job in groupby(rows, key=lambda row: row.job):
        before: float | None = None
        tries = list(of_job)
        for row in tries:
            found.append(_attempt(row, before, now, followed=row is not tries[-1]))
            before = row.ended_at
    return found


def _attempt(row: sa.Row[Any], before: float | None, now: float, *, followed: bool) -> ExportedAttempt:
    """One of them; `before`: when the one before it ended."""
    none = row.number is None
    ended_at = row.job_ended_at if none else row.ended_at
    on_cluster = bool(read_cluster(row.node)[0])
    # Where another queue chose its node it had nothing before it started.
    since = None if none else row.started_at if on_cluster else row.leased_at
    # Clocks of several machines may say that it ended before it had a place.
    if since is not None and ended_at is not None:
        since = min(since, ended_at)
    going_on = not none and ended_at is None and row.suspended_at is not None
    found = same(ExportedAttempt, row) | {
        "array": row.array_job_id,
        "index": row.array_task_id,
        "attempt": row.number or 0,
        "node": row.node or "",
        "on_cluster": on_cluster,
        "state": row.job_state if none else row.state,
        "depends": bool(row.dependency) and before is None,
        "followed": followed,
        "submitted_at": row.submitted_at if before is None else before,
        "since": since,
        "ended_at": ended_at,
        "stopped": (row.suspended_seconds or 0.0) + (max(0.0, now - row.suspended_at) if going_on else 0.0),
        "memory_peak": 0 if none else int(json.loads(row.usage).get("memory_peak", 0)),
    }
    return ExportedAttempt(**found)
