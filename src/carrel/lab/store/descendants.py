"""Jobs that jobs submitted, of all generations."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from carrel.core.domain.job import ACTIVE
from carrel.core.domain.qos import JobKind
from carrel.lab.store.tables import ACTIVE_ONLY, jobs

_ACTIVE = sorted(state.value for state in ACTIVE)


def check_descendants(
    connection: sa.Connection, owner: str, parent: int | None, admit: Callable[[int | None, int], None] | None
) -> None:
    """Where `parent` is a session or comes from one, call `admit` with it and how many jobs come from it that have not ended.

    For any other parent `admit` gets None, and how many jobs that jobs have submitted the owner has in all.

    In the transaction that writes another one down, so that two at once cannot both be the last.
    """
    if parent is None or admit is None:
        return
    session = connection.execute(_session_of(parent)).scalar()
    admit(session, connection.execute(_of_jobs(owner) if session is None else _open_below(session)).scalar_one())


def _session_of(job_id: int) -> sa.Select[int]:
    """The job itself or the nearest one above it that is a session."""
    above = sa.select(jobs.c.id, jobs.c.parent, jobs.c.kind).where(jobs.c.id == job_id).cte("above", recursive=True)
    further = sa.select(jobs.c.id, jobs.c.parent, jobs.c.kind).join(above, jobs.c.id == above.c.parent)
    above = above.union_all(further.where(above.c.kind != JobKind.SESSION.value))
    return sa.select(above.c.id).where(above.c.kind == JobKind.SESSION.value)


def _of_jobs(owner: str) -> sa.Select[int]:
    """How many jobs of a user that have not ended were submitted by jobs."""
    active: sa.ColumnElement[bool] = sa.literal_column(ACTIVE_ONLY)  # as the index has it
    return sa.select(sa.func.count()).select_from(jobs).where(jobs.c.owner == owner, jobs.c.parent.is_not(None), active)


def _open_below(job_id: int) -> sa.Select[int]:
    """How many jobs below a job have not ended; those between may have."""
    below = sa.select(jobs.c.id, jobs.c.state).where(jobs.c.parent == job_id).cte("below", recursive=True)
    below = below.union_all(sa.select(jobs.c.id, jobs.c.state).join(below, jobs.c.parent == below.c.id))
    return sa.select(sa.func.count()).select_from(below).where(below.c.state.in_(_ACTIVE))
