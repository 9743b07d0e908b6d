"""Pools and calls in the database. What is large lies in files; here is where."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from carrel.core.domain.call import Body, CachedResult, Call, CallState, Ending, NewCall, WorkerPool
from carrel.core.domain.nouns import POOLS
from carrel.lab.store import cached_results
from carrel.lab.store.call_tables import OPEN_ONLY, call_dependencies, calls, pool_functions, pool_workers, pools
from carrel.lab.store.database import Database
from carrel.lab.store.records import Rows

_FIELDS = tuple(item.name for item in fields(Call))
_POOLS = Rows(pools, POOLS)
#: Numbers in one query.
_TOGETHER = 500
_CALL = sa.select(*(calls.c[name] for name in _FIELDS))
_INSERT = sa.insert(calls).returning(calls.c.id, sort_by_parameter_order=True)
_BEGIN = (
    sa.update(calls)
    .where(calls.c.id.in_(sa.bindparam("which", expanding=True)), calls.c.state == CallState.PENDING.value)
    .values(
        state=CallState.RUNNING.value,
        job_id=sa.bindparam("job"),
        attempt=sa.bindparam("number"),
        started_at=sa.bindparam("now"),
    )
    .returning(calls.c.id)
)
_END = (
    sa.update(calls)
    .where(calls.c.id == sa.bindparam("which"), calls.c.ended_number.is_(None))
    .values(
        {
            name: sa.bindparam(f"new_{name}")
            for name in ("state", "ended_at", "ended_number", "error", "message", "result_size", "result", "result_path")
        }
        | {name: sa.bindparam(f"new_{name}") for name in ("stdout", "stderr", "cached_from")}
        | {"arguments": None, "arguments_path": None}
    )
)


class CallTable:
    """Implements `carrel.core.control.pool_ports.CallStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- pools

    def add_pool(self, pool: WorkerPool) -> WorkerPool:
        """Write a pool down; return it with its number."""
        with self._database.write() as connection:
            return _POOLS.insert(connection, pool)

    def pools(self, *, owner: str | None = None, closed: bool = False) -> Sequence[WorkerPool]:
        """Newest first: of everybody or of one; those that are closed only if asked for."""
        query = sa.select(pools).order_by(pools.c.id.desc())
        if owner is not None:
            query = query.where(pools.c.owner == owner)
        if not closed:
            query = query.where(pools.c.closed_at.is_(None))
        with self._database.read() as connection:
            return [_POOLS.read(row._mapping) for row in connection.execute(query)]

    def unfinished_pools(self) -> Sequence[WorkerPool]:
        """Those that are open, or have calls that have not ended."""
        unended = sa.exists().where(calls.c.pool_id == pools.c.id, sa.text(OPEN_ONLY))
        with self._database.read() as connection:
            return [
                _POOLS.read(row._mapping)
                for row in connection.execute(sa.select(pools).where(pools.c.closed_at.is_(None) | unended))
            ]

    def pool(self, pool_id: int) -> WorkerPool | None:
        """The pool, or None."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(pools).where(pools.c.id == pool_id)).first()
        return None if row is None else _POOLS.read(row._mapping)

    def close_pool(self, pool_id: int, *, now: float) -> None:
        """It takes no more calls."""
        change = sa.update(pools).where(pools.c.id == pool_id, pools.c.closed_at.is_(None)).values(closed_at=now)
        with self._database.write() as connection:
            connection.execute(change)

    def add_worker(self, pool_id: int, job_id: int) -> None:
        """The job is a worker of the pool."""
        with self._database.write() as connection:
            connection.execute(sa.insert(pool_workers), {"pool_id": pool_id, "job_id": job_id})

    def workers(self, pool_id: int) -> Sequence[int]:
        """All jobs that are or were workers of the pool, oldest first."""
        query = sa.select(pool_workers.c.job_id).where(pool_workers.c.pool_id == pool_id).order_by(pool_workers.c.job_id)
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    # ---- functions

    def add_function(self, pool_id: int, digest: str, body: Body) -> bool:
        """Keep a function; return whether it is new. The file of one that is there already stays the caller's."""
        row = {"pool_id": pool_id, "digest": digest, "size": body.size, "data": body.data, "path": body.path}
        with self._database.write() as connection:
            if connection.execute(_function(pool_id, digest)).first() is not None:
                return False
            connection.execute(sa.insert(pool_functions), row)
        return True

    def function(self, pool_id: int, digest: str) -> Body | None:
        """A function's content, or None."""
        with self._database.read() as connection:
            row = connection.execute(_function(pool_id, digest)).first()
        return None if row is None else Body(size=row.size, data=row.data, path=row.path)

    def drop_functions(self, pool_id: int) -> Sequence[Body]:
        """Forget what a pool has for its calls; return the bodies that lie in files."""
        of_pool = pool_functions.c.pool_id == pool_id
        with self._database.write() as connection:
            lying = sa.select(pool_functions.c.size, pool_functions.c.path).where(of_pool, pool_functions.c.path.is_not(None))
            found = [Body(size=row.size, path=row.path) for row in connection.execute(lying)]
            connection.execute(sa.delete(pool_functions).where(of_pool))
        return found

    # ---- calls

    def add_calls(self, pool_id: int, new: Sequence[NewCall], *, now: float) -> Sequence[tuple[int, bool]]:
        """Write calls down; return the number of each in the order of `new`, and whether it is new."""
        keys = [call.key for call in new]
        query = sa.select(calls.c.key, calls.c.id).where(calls.c.pool_id == pool_id, calls.c.key.in_(keys))
        with self._database.write() as connection:
            known: dict[str, int] = dict(connection.execute(query).all())
            fresh = {call.key: call for call in new if call.key not in known}
            rows = [_new_row(pool_id, call, now) for call in fresh.values()]
            made = dict(zip(fresh, connection.execute(_INSERT, rows).scalars(), strict=True)) if rows else {}
            needs = [{"call_id": made[key], "needs": one} for key, call in fresh.items() for one in set(call.dependencies)]
            if needs:
                connection.execute(sa.insert(call_dependencies), needs)
        return [(made[key], True) if key in made else (known[key], False) for key in keys]

    def begin(self, call_ids: Collection[int], *, job_id: int, attempt: int, now: float) -> Set[int]:
        """A worker is given these calls; return those of them that waited."""
        with self._database.write() as connection:
            begun = connection.execute(_BEGIN, {"which": list(call_ids), "job": job_id, "number": attempt, "now": now})
            return set(begun.scalars())

    def again(self, call_ids: Mapping[int, int]) -> None:
        """These calls wait again; each has so many retries left."""
        change = (
            sa.update(calls)
            .where(calls.c.id == sa.bindparam("which"), calls.c.state == CallState.RUNNING.value)
            .values(state=CallState.PENDING.value, job_id=None, attempt=None, started_at=None, retries_left=sa.bindparam("left"))
        )
        if call_ids:
            with self._database.write() as connection:
                connection.execute(change, [{"which": one, "left": left} for one, left in call_ids.items()])

    def end(
        self, endings: Mapping[int, Ending], *, now: float, keep: Mapping[int, Body] = MappingProxyType({})
    ) -> Sequence[Body]:
        """Calls have ended, by their numbers among those of the pool that have. One that has ended stays as it is.

        Nothing reads their arguments any more: they are forgotten, and those that lie in files are returned.
        `keep`: of calls whose results are for equal calls too, the body that is the cache's own.
        """
        rows = [
            {
                "which": one.call_id,
                "new_state": one.state.value,
                "new_ended_at": now,
                "new_ended_number": number,
                "new_error": one.error,
                "new_message": one.message,
                "new_result_size": one.body.size,
                "new_result": one.body.data,
                "new_result_path": one.body.path,
                "new_stdout": one.stdout or None,
                "new_stderr": one.stderr or None,
                "new_cached_from": one.cached_from,
            }
            for number, one in endings.items()
        ]
        files: list[Body] = []
        if rows:
            with self._database.write() as connection:
                for some in _some([one.call_id for one in endings.values()]):
                    lying = sa.select(calls.c.arguments_size, calls.c.arguments_path).where(
                        calls.c.id.in_(some), calls.c.arguments_path.is_not(None)
                    )
                    files += [Body(size=row.arguments_size, path=row.arguments_path) for row in connection.execute(lying)]
                connection.execute(_END, rows)
                cached_results.keep(connection, keep, now)
        return files

    def open_calls(self, pool_id: int) -> Sequence[Call]:
        """Those that have not ended, oldest first."""
        query = _CALL.where(calls.c.pool_id == pool_id, sa.text(OPEN_ONLY)).order_by(calls.c.id)
        return self._read(query)

    def last_ended(self, pool_id: int) -> int:
        """Number of the call that ended last; 0 when none has."""
        query = sa.select(sa.func.max(calls.c.ended_number)).where(calls.c.pool_id == pool_id)
        with self._database.read() as connection:
            return connection.execute(query).scalar() or 0

    def ended(self, pool_id: int, *, after: int, limit: int) -> Sequence[Call]:
        """Those that ended after that number, in the order in which they ended."""
        query = _CALL.where(calls.c.pool_id == pool_id, calls.c.ended_number > after).order_by(calls.c.ended_number).limit(limit)
        return self._read(query)

    def list(self, pool_id: int, *, before: int | None, limit: int, state: CallState | None = None) -> Sequence[Call]:
        """Newest first: all, or those in a state."""
        query = _CALL.where(calls.c.pool_id == pool_id).order_by(calls.c.id.desc()).limit(limit)
        query = query if state is None else query.where(calls.c.state == state.value)
        return self._read(query if before is None else query.where(calls.c.id < before))

    def call(self, call_id: int) -> Call | None:
        """The call, or None."""
        return next(iter(self._read(_CALL.where(calls.c.id == call_id))), None)

    def counts(self, pool_id: int) -> Mapping[str, int]:
        """How many calls of the pool are in each state."""
        query = sa.select(calls.c.state, sa.func.count()).where(calls.c.pool_id == pool_id).group_by(calls.c.state)
        with self._database.read() as connection:
            return dict(connection.execute(query).all())

    def arguments(self, call_id: int) -> Body:
        """Its pickled arguments."""
        return self._body(call_id, "arguments")

    def result(self, call_id: int) -> Body:
        """Its pickled result."""
        return self._body(call_id, "result")

    def drop_results(self, pool_id: int, call_ids: Collection[int]) -> Mapping[int, Body]:
        """Forget results of these calls that lie in files, but for those that a call which has not ended needs; return them."""
        found: dict[int, Body] = {}
        lying = sa.select(calls.c.id, calls.c.result_size, calls.c.result_path).where(
            calls.c.pool_id == pool_id, calls.c.result_path.is_not(None), ~_needed()
        )
        with self._database.write() as connection:
            for some in _some(call_ids):
                rows = connection.execute(lying.where(calls.c.id.in_(some))).all()
                found |= {row.id: Body(size=row.result_size, path=row.result_path) for row in rows}
                gone = calls.c.id.in_([row.id for row in rows])
                connection.execute(sa.update(calls).where(gone).values(result_path=None))
        return found

    def without_results(self, call_ids: Collection[int]) -> Set[int]:
        """Those of these calls whose results are not kept any more."""
        found: set[int] = set()
        no_content = sa.and_(calls.c.result_size > 0, calls.c.result.is_(None), calls.c.result_path.is_(None))
        with self._database.read() as connection:
            for some in _some(call_ids):
                found.update(connection.execute(sa.select(calls.c.id).where(calls.c.id.in_(some), no_content)).scalars())
        return found

    def printed(self, call_id: int) -> tuple[bytes, bytes]:
        """The ends of what it wrote to stdout and stderr."""
        query = sa.select(calls.c.stdout, calls.c.stderr).where(calls.c.id == call_id)
        with self._database.read() as connection:
            row = connection.execute(query).one()
        return row.stdout or b"", row.stderr or b""

    # ---- what calls wait for, and may share

    def dependencies(self, call_ids: Collection[int]) -> Mapping[int, Sequence[int]]:
        """The calls whose results these need; none for one that needs none."""
        found: dict[int, list[int]] = {}
        with self._database.read() as connection:
            for some in _some(call_ids):
                query = (
                    sa.select(call_dependencies).where(call_dependencies.c.call_id.in_(some)).order_by(call_dependencies.c.needs)
                )
                for row in connection.execute(query):
                    found.setdefault(row.call_id, []).append(row.needs)
        return found

    def states(self, owner: str, call_ids: Collection[int]) -> Mapping[int, CallState]:
        """States of those calls that are of this user."""
        found: dict[int, CallState] = {}
        with self._database.read() as connection:
            for some in _some(call_ids):
                query = sa.select(calls.c.id, calls.c.state).join(pools).where(calls.c.id.in_(some), pools.c.owner == owner)
                found |= {row.id: CallState(row.state) for row in connection.execute(query)}
        return found

    def cached(self, owner: str, digests: Collection[str], *, now: float) -> Mapping[str, CachedResult]:
        """Results of the user's that are kept under these digests; they are in use now."""
        with self._database.write() as connection:
            return cached_results.find(connection, owner, digests, now)

    def forget_cached(self, owner: str, function: str | None) -> tuple[int, Sequence[Body]]:
        """Keep none of the user's results, or none of this function's; how many there were, and the files that nobody names."""
        with self._database.write() as connection:
            return cached_results.forget(connection, owner, function)

    def old_cached(self, before: float | None, most: int | None) -> tuple[int, Sequence[Path]]:
        """How many kept results were not used since that moment, or are more than `most` bytes for their user; their files."""
        with self._database.read() as connection:
            return cached_results.old(connection, before, most)

    def drop_old_cached(self, before: float | None, most: int | None) -> tuple[int, Sequence[Path]]:
        """Forget them; the files are nobody's then."""
        with self._database.write() as connection:
            return cached_results.drop_old(connection, before, most)

    # ---- keeping

    def old(self, before: float) -> tuple[int, Sequence[Path]]:
        """How many calls ended before that moment, and the files of theirs and of pools that were closed before it."""
        gone, over = _gone(before), _over(before)
        queries = (
            sa.select(calls.c.result_path).where(gone, calls.c.result_path.is_not(None)),
            sa.select(pool_functions.c.path).where(pool_functions.c.pool_id.in_(over), pool_functions.c.path.is_not(None)),
        )
        with self._database.read() as connection:
            count = connection.execute(sa.select(sa.func.count()).select_from(calls).where(gone)).scalar_one()
            return int(count), [Path(path) for query in queries for path in connection.execute(query).scalars()]

    def drop_old(self, before: float) -> None:
        """Forget them, and pools that were closed before that moment and have no calls left."""
        over = _over(before)
        with self._database.write() as connection:
            old = sa.select(calls.c.id).where(_gone(before))
            named = call_dependencies.c
            connection.execute(sa.delete(call_dependencies).where(named.call_id.in_(old) | named.needs.in_(old)))
            connection.execute(sa.delete(calls).where(_gone(before)))
            numbers = list(connection.execute(over).scalars())
            for table, column in ((pool_functions, "pool_id"), (pool_workers, "pool_id"), (pools, "id")):
                connection.execute(sa.delete(table).where(table.c[column].in_(numbers)))

    def needed_elsewhere(self, pool_id: int) -> bool:
        """True while a call that has not ended needs the result of one of the pool."""
        dependent = calls.alias("dependent")
        query = (
            sa.select(dependent.c.id)
            .join(call_dependencies, call_dependencies.c.call_id == dependent.c.id)
            .join(calls, call_dependencies.c.needs == calls.c.id)
            .where(calls.c.pool_id == pool_id, dependent.c.ended_at.is_(None))
        )
        with self._database.read() as connection:
            return connection.execute(query.limit(1)).first() is not None

    def remove_pool(self, pool_id: int) -> Sequence[Body]:
        """Forget a pool that is over with all its calls; return the bodies that lie in files."""
        of_pool = sa.select(calls.c.id).where(calls.c.pool_id == pool_id)
        named = call_dependencies.c
        files = (
            sa.select(calls.c.arguments_path).where(calls.c.pool_id == pool_id),
            sa.select(calls.c.result_path).where(calls.c.pool_id == pool_id),
            sa.select(pool_functions.c.path).where(pool_functions.c.pool_id == pool_id),
        )
        with self._database.write() as connection:
            paths = [path for query in files for path in connection.execute(query).scalars() if path is not None]
            connection.execute(sa.delete(call_dependencies).where(named.call_id.in_(of_pool) | named.needs.in_(of_pool)))
            for table, column in ((calls, "pool_id"), (pool_functions, "pool_id"), (pool_workers, "pool_id"), (pools, "id")):
                connection.execute(sa.delete(table).where(table.c[column] == pool_id))
        return [Body(size=0, path=path) for path in paths]

    def files(self) -> Set[Path]:
        """All files that calls and functions name."""
        columns = (calls.c.arguments_path, calls.c.result_path, pool_functions.c.path, cached_results.PATH)
        with self._database.read() as connection:
            return {
                Path(path)
                for column in columns
                for path in connection.execute(sa.select(column).where(column.is_not(None))).scalars()
            }

    def _body(self, call_id: int, which: str) -> Body:
        columns = [
            calls.c[name].label(label) for name, label in ((f"{which}_size", "size"), (which, "data"), (f"{which}_path", "path"))
        ]
        with self._database.read() as connection:
            row = connection.execute(sa.select(*columns).where(calls.c.id == call_id)).one()
        return Body(size=row.size, data=row.data, path=row.path)

    def _read(self, query: sa.Select[Any]) -> Sequence[Call]:
        with self._database.read() as connection:
            return [_call(dict(row)) for row in connection.execute(query).mappings()]


def _some(numbers: Collection[int]) -> Iterator[list[int]]:
    found = sorted(numbers)
    return (found[start : start + _TOGETHER] for start in range(0, len(found), _TOGETHER))


def _gone(before: float) -> sa.ColumnElement[bool]:
    """Calls that ended before that moment, but for those whose results are still needed."""
    return sa.and_(calls.c.ended_at < before, ~_needed())


def _needed() -> sa.Exists:
    """Calls whose results a call that has not ended needs."""
    dependent = calls.alias("dependent")
    return sa.exists().where(
        call_dependencies.c.needs == calls.c.id, call_dependencies.c.call_id == dependent.c.id, dependent.c.ended_at.is_(None)
    )


def _over(before: float) -> sa.Select[tuple[int]]:
    """Pools that were closed before that moment, and of which no call is younger."""
    younger = sa.exists().where(calls.c.pool_id == pools.c.id, calls.c.ended_at.is_(None) | (calls.c.ended_at >= before))
    return sa.select(pools.c.id).where(pools.c.closed_at < before, ~younger)


def _function(pool_id: int, digest: str) -> sa.Select[Any]:
    return sa.select(pool_functions).where(pool_functions.c.pool_id == pool_id, pool_functions.c.digest == digest)


def _new_row(pool_id: int, call: NewCall, now: float) -> dict[str, Any]:
    return {
        "pool_id": pool_id,
        "key": call.key,
        "label": call.label,
        "function": call.function,
        "state": CallState.PENDING.value,
        "retries_left": call.retries,
        "created_at": now,
        "arguments_size": call.body.size,
        "arguments": call.body.data,
        "arguments_path": call.body.path,
        "cache": call.cache,
        "time_limit": call.time_limit,
    }


def _call(row: Mapping[str, Any]) -> Call:
    return Call(**{**row, "state": CallState(row["state"])})
