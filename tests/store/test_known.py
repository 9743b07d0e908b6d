"""What was read is remembered until somebody writes to its tables, and never longer than a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from carrel.lab.store.database import Database
from carrel.lab.store.known import LIFETIME, Known

_META = sa.MetaData()
APPLES = sa.Table("apples", _META, sa.Column("name", sa.String, primary_key=True), sa.Column("number", sa.Integer))
PEARS = sa.Table("pears", _META, sa.Column("name", sa.String, primary_key=True), sa.Column("number", sa.Integer))


class Shelf:
    """Two tables, what is known of the first, and how often it was read."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = 0.0
        self.reads = 0
        self.known: Known[str, int] = Known(
            database, APPLES, most=2, fits=lambda number: number < 100, monotonic=lambda: self.now
        )

    def number(self, name: str = "elstar") -> int | None:
        return self.known.read(name, lambda: self._read(name))

    def _read(self, name: str) -> int | None:
        self.reads += 1
        with self.database.read() as connection:
            return connection.execute(sa.select(APPLES.c.number).where(APPLES.c.name == name)).scalar()

    def write(self, statement: sa.Executable) -> None:
        with self.database.write() as connection:
            connection.execute(statement)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    database = Database.at(tmp_path / "shelf.db")
    with database.write() as connection:
        _META.create_all(connection)
        connection.execute(sa.insert(APPLES), [{"name": name, "number": 1} for name in ("elstar", "boskoop", "gala")])
        connection.execute(sa.insert(PEARS), {"name": "conference", "number": 1})
    yield Shelf(database)
    database.close()


def test_what_nobody_has_changed_is_read_once(shelf: Shelf) -> None:
    assert [shelf.number(), shelf.number()] == [1, 1]
    shelf.write(sa.update(PEARS).values(number=2))
    shelf.write(sa.select(APPLES))
    assert (shelf.number(), shelf.known.get("elstar"), shelf.reads) == (1, 1, 1)


@pytest.mark.parametrize(
    "change",
    [
        sa.update(APPLES).values(number=5),
        sa.insert(APPLES).values(name="cox", number=5),
        sa.delete(APPLES),
        sa.text("UPDATE apples SET number = 5"),
    ],
    ids=["update", "insert", "delete", "text"],
)
def test_a_write_to_the_table_is_seen_at_once(shelf: Shelf, change: sa.Executable) -> None:
    shelf.number()
    shelf.write(change)
    assert shelf.known.get("elstar") is None
    with shelf.database.read() as connection:
        there = connection.execute(sa.select(APPLES.c.number).where(APPLES.c.name == "elstar")).scalar()
    assert shelf.number() == there


def test_a_write_beside_the_read_makes_what_was_read_old(shelf: Shelf) -> None:
    def read() -> int | None:
        found = shelf._read("elstar")
        shelf.write(sa.update(APPLES).values(number=7))
        return found

    assert shelf.known.read("elstar", read) == 1
    assert shelf.number() == 7


def test_a_change_is_not_told_before_it_is_seen(shelf: Shelf) -> None:
    shelf.number()
    with pytest.raises(RuntimeError), shelf.database.write() as connection:
        connection.execute(sa.update(APPLES).values(number=9))
        raise RuntimeError
    assert shelf.number() == 1  # rolled back
    assert shelf.reads == 2  # and looked at again, which costs nothing but time


def test_after_a_second_it_is_read_again_whoever_has_written(shelf: Shelf) -> None:
    shelf.number()
    with sa.create_engine(shelf.database.url).begin() as by_hand:
        by_hand.execute(sa.update(APPLES).values(number=3))
    assert shelf.number() == 1
    shelf.now += LIFETIME
    assert shelf.number() == 3


def test_only_the_newest_and_what_fits_is_kept_and_nothing_of_what_is_not_there(shelf: Shelf) -> None:
    assert [shelf.number(name) for name in ("elstar", "boskoop", "gala", "none", "none")] == [1, 1, 1, None, None]
    assert [shelf.known.get(name) for name in ("elstar", "boskoop", "gala")] == [None, 1, 1]
    assert shelf.reads == 5
    shelf.write(sa.update(APPLES).values(number=100))
    assert (shelf.number(), shelf.known.get("elstar")) == (100, None)
