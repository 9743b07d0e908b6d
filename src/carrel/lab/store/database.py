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


class Database:
    """One database of one lab.

    Writers of this process take turns, so that event ids become visible in their order on every backend; a lab has one
    server process, which holds a lock file for its life. Readers never wait for writers.
    """

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._turn = threading.RLock()
        if self.is_sqlite:
            self._engine = sa.create_engine(self.url, pool_size=8, max_overflow=32, connect_args={"timeout": 30})
            event.listen(self._engine, "connect", _configure_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        else:
            self._engine = sa.create_engine(self.url, pool_size=8, max_overflow=8, pool_pre_ping=True)

    @classmethod
    def at(cls, path: Path) -> Database:
        """The SQLite database in the file `path`."""
        return cls(f"sqlite:///{path}")

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """One transaction, committed at the end or rolled back whole. Raises `StorageFull` or `Unavailable`."""
        with self._turn, self._explained():
            with self._engine.connect().execution_options(carrel_write=True) as connection, connection.begin():
                yield connection

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """One consistent view; nothing is written."""
        with self._explained(), self._engine.connect() as connection:
            yield connection

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
    write = connection.get_execution_options().get("carrel_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
