"""Attempts with all that formats of others want to know of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from carrel.core.domain.partition import read_cluster
from carrel.core.exports import ExportedAttempt
from carrel.lab.store.tables import attempts, jobs


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
    return ExportedAttempt(
        job=row.job,
        array=row.array_job_id,
        index=row.array_task_id,
        attempt=row.number or 0,
        kind=row.kind,
        owner=row.owner,
        account=row.account,
        qos=row.qos,
        partition=row.partition,
        name=row.name,
        node=row.node or "",
        on_cluster=on_cluster,
        nodes=row.nodes,
        cpus=row.cpus,
        memory=row.memory,
        gpus=row.gpus,
        time=row.time,
        state=row.job_state if none else row.state,
        exit_code=row.exit_code,
        signal=row.signal,
        depends=bool(row.dependency) and before is None,
        followed=followed,
        submitted_at=row.submitted_at if before is None else before,
        since=since,
        ended_at=ended_at,
        stopped=(row.suspended_seconds or 0.0) + (max(0.0, now - row.suspended_at) if going_on else 0.0),
        memory_peak=0 if none else int(json.loads(row.usage).get("memory_peak", 0)),
    )
