"""Results of calls that are kept for equal calls of the same user, in the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import sqlalchemy as sa

from carrel.core.domain.call import Body, CachedResult
from carrel.lab.store.call_tables import cached_results as kept
from carrel.lab.store.call_tables import calls, pools

PATH = kept.c.path
_TOGETHER = 500


def keep(connection: sa.Connection, bodies: Mapping[int, Body], now: float) -> None:
    """Keep what these calls returned. What is kept already stays."""
    for call_id, body in bodies.items():
        query = sa.select(calls.c.label, calls.c.cache, pools.c.owner).join(pools).where(calls.c.id == call_id)
        row = connection.execute(query).one()
        there = sa.select(kept.c.digest).where(kept.c.owner == row.owner, kept.c.digest == row.cache)
        if row.cache is None or connection.execute(there).first() is not None:
            continue
        connection.execute(
            sa.insert(kept),
            {
                "owner": row.owner,
                "digest": row.cache,
                "label": row.label,
                "call_id": call_id,
                "used_at": now,
                "size": body.size,
                "data": body.data,
                "path": body.path,
            },
        )


def find(connection: sa.Connection, owner: str, digests: Collection[str], now: float) -> dict[str, CachedResult]:
    """Those of the user that are kept under these digests, by digest; they are used now."""
    found: dict[str, CachedResult] = {}
    wanted = sorted(digests)
    for start in range(0, len(wanted), _TOGETHER):
        mine = (kept.c.owner == owner, kept.c.digest.in_(wanted[start : start + _TOGETHER]))
        rows = connection.execute(sa.select(kept).where(*mine)).all()
        if rows:
            connection.execute(sa.update(kept).where(*mine).values(used_at=now))
        for row in rows:
            found[row.digest] = CachedResult(call_id=row.call_id, body=Body(size=row.size, data=row.data, path=row.path))
    return found


def forget(connection: sa.Connection, owner: str, function: str | None) -> tuple[int, Sequence[Body]]:
    """Forget those of the user, or those of one function of theirs."""
    mine = [kept.c.owner == owner, *([kept.c.label == function] if function is not None else [])]
    bodies = [Body(size=row.size, path=row.path) for row in connection.execute(sa.select(kept.c.size, kept.c.path).where(*mine))]
    connection.execute(sa.delete(kept).where(*mine))
    return len(bodies), bodies


def old(connection: sa.Connection, before: float | None, most: int | None) -> tuple[int, Sequence[Path]]:
    """Those that were not used since that moment, and those used longest ago of a user who has more than `most` bytes."""
    rows = connection.execute(_old(before, most)).all()
    return len(rows), [Path(row.path) for row in rows if row.path is not None]


def drop_old(connection: sa.Connection, before: float | None, most: int | None) -> tuple[int, Sequence[Path]]:
    """Forget them."""
    rows = connection.execute(_old(before, most)).all()
    for row in rows:
        connection.execute(sa.delete(kept).where(kept.c.owner == row.owner, kept.c.digest == row.digest))
    return len(rows), [Path(row.path) for row in rows if row.path is not None]


def _old(before: float | None, most: int | None) -> sa.Select[tuple[str, str, str | None]]:
    order = sa.func.sum(kept.c.size).over(partition_by=kept.c.owner, order_by=(kept.c.used_at.desc(), kept.c.digest))
    every = sa.select(kept.c.owner, kept.c.digest, kept.c.path, kept.c.used_at, order.label("total")).subquery()
    unused = every.c.used_at < before if before is not None else sa.false()
    too_much = every.c.total > most if most is not None else sa.false()
    return sa.select(every.c.owner, every.c.digest, every.c.path).where(unused | too_much)
