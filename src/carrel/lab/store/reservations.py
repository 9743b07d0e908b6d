"""Reservations of nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import sqlalchemy as sa

from carrel.core.domain.reservation import Reservation
from carrel.lab.store.database import Database
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import reservations


class ReservationTable:
    """Implements `carrel.core.control.reservations.ReservationStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, reservation: Reservation) -> None:
        """Keep it; one of the same name is replaced."""
        row = {
            "name": reservation.name,
            "begin": reservation.begin,
            "end": reservation.end,
            "nodes": dump(reservation.nodes),
            "users": dump(sorted(reservation.users)),
            "accounts": dump(sorted(reservation.accounts)),
            "reason": reservation.reason,
            "by": reservation.by,
        }
        with self._database.write() as connection:
            connection.execute(sa.delete(reservations).where(reservations.c.name == reservation.name))
            connection.execute(sa.insert(reservations), row)

    def remove(self, name: str) -> bool:
        """It is gone; returns whether it was there."""
        with self._database.write() as connection:
            return bool(connection.execute(sa.delete(reservations).where(reservations.c.name == name)).rowcount)

    def all(self) -> Sequence[Reservation]:
        """All of them, also those that are over, the first to begin first."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(reservations).order_by(reservations.c.begin, reservations.c.name))
            return [
                Reservation(
                    name=row.name,
                    begin=row.begin,
                    end=row.end,
                    nodes=tuple(json.loads(row.nodes)),
                    users=frozenset(json.loads(row.users)),
                    accounts=frozenset(json.loads(row.accounts)),
                    reason=row.reason,
                    by=row.by,
                )
                for row in rows
            ]
