"""Connections and transactions, for SQLite and PostgreSQL alike."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, OperationalError

from carrel.core.domain.errors import StorageFull, Unavailable
from carrel.core.spool.disk import full_at

#: What databases say when there is no room (SQLite's SQLITE_FULL, PostgreSQL's class 53 "disk full").
_FULL = ("database or disk is full", "No space left on device", "could not extend file")

_BEGIN_WRITE = "BEGIN IMMEDIATE"
#: Stands for every table.
_ANY = ""


class Database:
    """One database of one lab.

    Writers of this process take turns, so that event ids become visible in their order on every backend; a lab has one
    server process, which holds a lock file for its life. Readers never wait for writers.
    """

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turn = threading.RLock()
        #: How often each table was written to; `_ANY` counts what cannot be told apart.
        self._written: dict[str, int] = {}
        if self.is_sqlite:
            self._engine = sa.create_engine(self.url, pool_size=8, max_overflow=32, connect_args={"timeout": 30})
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            # A database of the encoding SQL_ASCII, as initdb(1) makes them where the locale is C, gives bytes for text otherwise.
            encoded = {"client_encoding": "utf8"}
            self._engine = sa.create_engine(self.url, pool_size=8, max_overflow=8, pool_pre_ping=True, connect_args=encoded)
        event.listen(self._engine, "before_cursor_execute", _note_table)

    @classmethod
    def at(cls, path: Path) -> Database:
        """The SQLite database in the file `path`."""
        return cls(f"sqlite:///{path}")

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end or rolled back whole. Raises `StorageFull` or `Unavailable`."""
        written: set[str] = set()
        with self._turn, self._explained():
            try:
                with self._engine.connect().execution_options(carrel_write=written) as connection, connection.begin():
                    yield connection
            finally:  # after the commit and before anybody is told of it
                for name in written:
                    self._written[name] = self._written.get(name, 0) + 1

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One consistent view; nothing is written."""
        with self._explained(), self._engine.connect() as connection:
            yield connection

    def version(self, tables: tuple[str, ...]) -> int:
        """A number that is another one after each write of this process to one of the tables. Any thread."""
        return self._written.get(_ANY, 0) + sum(self._written.get(name, 0) for name in tables)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            words = str(error.orig)
            if any(text in words for text in _FULL):
                where = full_at(self.url.database) if self.is_sqlite and self.url.database else words
                raise StorageFull(
                    f"The lab's database cannot grow. {where}", remedy="Free space; nothing was changed."
                ) from error
            if isinstance(error, OperationalError):
                raise Unavailable(f"The lab's database does not answer: {words}.", remedy="Try again in a moment.") from error
            raise

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _configure_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    # Transactions are begun by _begin_sqlite, not guessed by the driver.
    connection.isolation_level = None
    cursor = connection.cursor()
    # NORMAL in WAL mode survives any death of processes; a power cut may take the last transactions but never the
    # consistency (sqlite.org/pragma.html#pragma_synchronous). docs/decisions/0003 weighs it.
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "journal_size_limit=67108864"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A writer takes the lock at once: a transaction that reads first and then wants to write could otherwise only fail.
    write = "carrel_write" in connection.get_execution_options()
    connection.exec_driver_sql(_BEGIN_WRITE if write else "BEGIN")


def _note_table(connection: sa.Connection, _cursor: Any, words: str, _parameters: Any, context: Any, _many: bool) -> None:
    """Remember which table a writer writes to."""
    written: set[str] | None = connection.get_execution_options().get("carrel_write")
    if written is None or words == _BEGIN_WRITE:
        return
    statement = context.compiled.statement if context is not None and context.compiled is not None else None
    if isinstance(statement, sa.Insert | sa.Update | sa.Delete) and isinstance(statement.table, sa.Table):
        written.add(statement.table.name)
    elif not isinstance(statement, sa.Select):
        written.add(_ANY)
