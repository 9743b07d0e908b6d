"""Any noun of the lab in a table of its own: the columns that SQL selects by, and the rest of the value as JSON.

A class that a table holds is a frozen dataclass; `carrel.core.domain.serial` writes it and reads it. docs/decisions/0099.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from carrel.core.domain.noun import Noun, kept_fields
from carrel.core.domain.serial import from_plain, to_plain
from carrel.lab.store.database import Database
from carrel.lab.store.rows import dump
from carrel.lab.store.tables import VALUE

T = TypeVar("T")


class Rows(Generic[T]):
    """Values of a noun as rows of its table."""

    def __init__(self, table: sa.Table, noun: Noun[T]) -> None:
        """`table` is a `record_table`; each of its columns has the name of a field."""
        self.table, self.noun = table, noun
        self.keys = list(table.primary_key.columns)
        self._columns = [column for column in table.c if column.name != VALUE]
        self._fields = kept_fields(noun.type)

    def row(self, value: T) -> dict[str, Any]:
        """The row of a value, without a number that the database gives."""
        plain = {name: to_plain(getattr(value, name)) for name in self._fields}
        row = {column.name: plain.pop(column.name) for column in self._columns}
        if self.is_new(value):
            del row[self.keys[0].name]
        return {**row, VALUE: dump({name: item for name, item in plain.items() if item is not None})}

    def is_new(self, value: T) -> bool:
        """True when the database is to number the value."""
        return self.keys[0].autoincrement is True and not getattr(value, self.keys[0].name)

    def insert(self, connection: sa.Connection, value: T) -> T:
        """Write a new value down; return it with its number, if it has one."""
        made = connection.execute(sa.insert(self.table).returning(*self.keys), self.row(value)).one()
        return replace(value, **made._mapping)  # type: ignore[type-var]

    def read(self, row: sa.RowMapping) -> T:
        """The value in a row that has all columns of the table."""
        found = {column.name: row[column] for column in self._columns}
        return from_plain(self.noun.type, json.loads(row[self.table.c[VALUE]]) | found)


class Records(Generic[T]):
    """Implements `carrel.core.control.keeper.RecordStore`. Thread-safe."""

    def __init__(self, database: Database, table: sa.Table, noun: Noun[T]) -> None:
        self._database, self._table, self._rows = database, table, Rows(table, noun)
        self._keys = self._rows.keys
        self._order = attrgetter(*([noun.order] if noun.order else []), *(column.name for column in self._keys))
        #: What was asked for, and the version of the table that it was read at.
        self._known: dict[Hashable, tuple[int, Sequence[T]]] = {}

    def put(self, value: T) -> T:
        """Keep the value in the place of one with the same key. A key of 0 stands for the next number; returns what is kept."""
        with self._database.write() as connection:
            if not self._rows.is_new(value):
                row = self._rows.row(value)
                mine = [column == row[column.name] for column in self._keys]
                if connection.execute(sa.update(self._table).where(*mine).values(**row)).rowcount:
                    return value
            return self._rows.insert(connection, value)

    def get(self, *key: Any) -> T | None:
        """The value with this key, or None."""
        return next(iter(self.select(**dict(zip((column.name for column in self._keys), key, strict=True)))), None)

    def remove(self, *key: Any) -> bool:
        """Forget the value with this key; return whether there was one."""
        mine = [column == part for column, part in zip(self._keys, key, strict=True)]
        with self._database.write() as connection:
            return bool(connection.execute(sa.delete(self._table).where(*mine)).rowcount)

    def all(self, **equal: Any) -> Sequence[T]:
        """As `select`. While none is written, that is the very same sequence, and the database is not asked."""
        version, key = self._database.version((self._table.name,)), tuple(equal.items())
        known = self._known.get(key)
        if known is None or known[0] != version:
            # The version is older than what is read: what is written meanwhile makes it old at once.
            known = self._known[key] = (version, self.select(**equal))
        return known[1]

    def select(self, **equal: Any) -> Sequence[T]:
        """Those whose columns have these values, or one of several, in order."""
        columns = ((self._table.c[name], value) for name, value in equal.items())
        query = sa.select(self._table).where(
            *(column.in_(value) if isinstance(value, tuple) else column == value for column, value in columns)
        )
        with self._database.read() as connection:
            return tuple(sorted(map(self._rows.read, connection.execute(query).mappings()), key=self._order))
