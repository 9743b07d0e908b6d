"""Drained nodes."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from carrel.core.domain.node import Drain
from carrel.lab.store.database import Database
from carrel.lab.store.tables import drains


class DrainTable:
    """Implements `carrel.core.control.drains.DrainStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, drain: Drain) -> None:
        """Drain a node; one that is drained already has another reason from now on."""
        row = {"node": drain.node, "reason": drain.reason, "by": drain.by, "since": drain.since}
        with self._database.write() as connection:
            connection.execute(sa.delete(drains).where(drains.c.node == drain.node))
            connection.execute(sa.insert(drains), row)

    def remove(self, node: str) -> bool:
        """The node takes jobs again; returns whether it was drained."""
        with self._database.write() as connection:
            return bool(connection.execute(sa.delete(drains).where(drains.c.node == node)).rowcount)

    def all(self) -> Sequence[Drain]:
        """All drained nodes by name."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(drains).order_by(drains.c.node))
            return [Drain(node=row.node, reason=row.reason, by=row.by, since=row.since) for row in rows]
