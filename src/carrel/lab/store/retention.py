"""What the lab's memory says of what is on disk: who names it, and who has stored how much."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set

import sqlalchemy as sa

from carrel.core.domain.composition import OVER
from carrel.core.domain.retention import Stored
from carrel.lab.store.call_tables import LYING_ONLY, cached_results, calls, pool_functions, pools
from carrel.lab.store.database import Database
from carrel.lab.store.tables import VALUE, attempts, cells, challenge_submissions, compositions, jobs, outbox, outputs, snapshots

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: Rows that are fetched at a time.
_MANY = 1_000


def _old(before: float) -> Mapping[sa.Table, Sequence[sa.ColumnElement[bool]]]:
    """What says when GPUs were used, and which rows are over since then."""
    over = (compositions.c.state.in_(OVER), compositions.c.end < before)
    return {cells: (cells.c.seen_at < before,), compositions: over}


class RetentionTable:
    """What jobs have stored and name, what was used when, and what of it may go."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def ended_attempts(self, before: float) -> Set[tuple[int, int]]:
        """Job and number of all attempts that ended before that moment and are not the present one of a job that goes on.

        Those whose outputs wait to be collected are left out: their working directories are all there is of them.
        """
        query = (
            sa.select(attempts.c.job_id, attempts.c.number)
            .join(jobs)
            .where(
                attempts.c.ended_at < before,
                attempts.c.uncollected == 0,
                sa.or_(jobs.c.ended_at < before, attempts.c.number < jobs.c.attempt),
            )
        )
        with self._database.read() as connection:
            return {(row.job_id, row.number) for row in connection.execute(query)}

    def ended_jobs(self, before: float) -> Set[int]:
        """Jobs that ended before that moment, and of which no outputs wait to be collected."""
        waits = sa.select(attempts.c.job_id).where(attempts.c.uncollected != 0)
        with self._database.read() as connection:
            return set(
                connection.execute(sa.select(jobs.c.id).where(jobs.c.ended_at < before, jobs.c.id.not_in(waits))).scalars()
            )

    def oldest_start(self) -> float | None:
        """When the oldest attempt that has not ended began, or None while there is none."""
        with self._database.read() as connection:
            query = sa.select(sa.func.min(attempts.c.leased_at)).where(attempts.c.ended_at.is_(None))
            return connection.execute(query).scalar()

    def named(self) -> Set[str]:
        """The digests that some job names: its code, its lock, its stored outputs; what still has to be sent to MLflow; the code
        of submissions to challenges, which finals run again.
        """
        found: set[str] = set()
        columns = (
            sa.select(attempts.c.environment_lock).where(attempts.c.environment_lock.is_not(None)).distinct(),
            sa.select(outputs.c.digest).where(outputs.c.removed_at.is_(None)).distinct(),
        )
        texts = (sa.select(jobs.c.spec), sa.select(outbox.c.payload), sa.select(challenge_submissions.c[VALUE]))
        with self._database.read() as connection:
            for query in columns:
                found.update(connection.execute(query).scalars())
            for query in texts:
                for part in connection.execution_options(yield_per=_MANY).execute(query).scalars():
                    found.update(_DIGEST.findall(part))
        return found

    def outputs_of_ended(self, before: float) -> tuple[int, int]:
        """How many outputs of jobs that ended before that moment are stored, and their bytes."""
        query = (
            sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(outputs.c.size), 0))
            .select_from(outputs.join(jobs))
            .where(jobs.c.ended_at < before, outputs.c.removed_at.is_(None))
        )
        with self._database.read() as connection:
            count, size = connection.execute(query).one()
        return int(count), int(size)

    def drop_outputs(self, *, before: float, now: float) -> None:
        """From now on these are not stored any more; their names, sizes and digests stay in the record."""
        ended = sa.select(jobs.c.id).where(jobs.c.ended_at < before)
        change = sa.update(outputs).where(outputs.c.job_id.in_(ended), outputs.c.removed_at.is_(None)).values(removed_at=now)
        with self._database.write() as connection:
            connection.execute(change)

    def drop_outputs_of(self, job_id: int, *, now: float) -> tuple[int, int]:
        """The outputs of a job are not stored any more; return how many there were, and their bytes."""
        mine = sa.and_(outputs.c.job_id == job_id, outputs.c.removed_at.is_(None))
        with self._database.write() as connection:
            query = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(outputs.c.size), 0)).where(mine)
            count, size = connection.execute(query).one()
            connection.execute(sa.update(outputs).where(mine).values(removed_at=now))
        return int(count), int(size)

    def drop_code(self, digest: str) -> None:
        """Nobody has uploaded this code any more."""
        with self._database.write() as connection:
            connection.execute(sa.delete(snapshots).where(snapshots.c.digest == digest))

    def cells_before(self, before: float) -> int:
        """How many cells and machines from parts there are that had their GPUs before that moment and not after it."""
        with self._database.read() as connection:
            counts = [sa.select(sa.func.count()).select_from(table).where(*old) for table, old in _old(before).items()]
            return sum(int(connection.execute(count).scalar_one()) for count in counts)

    def drop_cells(self, before: float) -> None:
        """Forget them."""
        with self._database.write() as connection:
            for table, old in _old(before).items():
                connection.execute(sa.delete(table).where(*old))

    def stored(self, owner: str | None = None) -> Mapping[str, Stored]:
        """What each user has stored, or only `owner`."""
        of_outputs = (
            sa.select(jobs.c.owner, sa.func.sum(outputs.c.size))
            .select_from(outputs.join(jobs))
            .where(outputs.c.removed_at.is_(None))
            .group_by(jobs.c.owner)
        )
        of_logs = sa.select(jobs.c.owner, sa.func.sum(attempts.c.log_size)).join_from(attempts, jobs).group_by(jobs.c.owner)
        of_code = sa.select(snapshots.c.subject, sa.func.sum(snapshots.c.size)).group_by(snapshots.c.subject)
        of_calls = _of_calls()
        if owner is not None:
            of_calls = of_calls.where(sa.column("owner") == owner)
            of_outputs, of_logs = of_outputs.where(jobs.c.owner == owner), of_logs.where(jobs.c.owner == owner)
            of_code = of_code.where(snapshots.c.subject == owner)
        with self._database.read() as connection:
            found = {
                what: {str(name): int(size or 0) for name, size in connection.execute(query)}
                for what, query in {"outputs": of_outputs, "logs": of_logs, "code": of_code, "calls": of_calls}.items()
            }
        names = sorted(set().union(*found.values()))
        return {name: Stored(**{what: sizes.get(name, 0) for what, sizes in found.items()}) for name in names}


def _of_calls() -> sa.Select[tuple[str, int]]:
    """Owners, and bytes in files of their calls, of their pools, and of results that are kept for equal calls."""
    arguments = sa.case((calls.c.arguments_path.is_not(None), calls.c.arguments_size), else_=0)
    result = sa.case((calls.c.result_path.is_not(None), calls.c.result_size), else_=0)
    lying = sa.union_all(
        sa.select(pools.c.owner, (arguments + result).label("size")).join_from(calls, pools).where(sa.text(LYING_ONLY)),
        sa.select(pools.c.owner, pool_functions.c.size)
        .join_from(pool_functions, pools)
        .where(pool_functions.c.path.is_not(None)),
        sa.select(cached_results.c.owner, cached_results.c.size).where(cached_results.c.path.is_not(None)),
    ).subquery()
    return sa.select(lying.c.owner, sa.func.sum(lying.c.size)).group_by(lying.c.owner)
