"""Records of nouns: what goes in comes out, for any class and any values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, String

from carrel.core.domain.noun import Moment, Noun, derived, private, stamped
from carrel.lab.store.database import Database
from carrel.lab.store.records import Records
from carrel.lab.store.tables import metadata, record_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    id: int = 0
    shelf: str
    weight: float = 1.0
    marks: tuple[str, ...] = ()
    lent_to: str | None = None
    at: Moment = stamped(default=0.0)
    price: int = private(default=0)
    mine: bool = derived(default=False)


tools = record_table("tools_of_a_test", Column("id", Integer, primary_key=True, autoincrement=True), Column("shelf", String(64)))
metadata.remove(tools)
TOOL = Noun(type=Tool, name="tool", plural="tools", key="id")
BY_SHELF = replace(TOOL, order="shelf")
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=20)
TOOLS = st.builds(
    Tool, shelf=TEXT, weight=st.floats(allow_nan=False, allow_infinity=False), marks=st.tuples(TEXT, TEXT),
    lent_to=st.none() | TEXT, at=st.floats(0, 1e10), price=st.integers(0, 2**60),
)  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    made = Database.at(Path(tmp_path_factory.mktemp("records")) / "lab.db")
    with made.write() as connection:
        tools.create(connection)
    yield made
    made.close()


@given(tool=TOOLS)
def test_what_is_kept_is_read_again(database: Database, tool: Tool) -> None:
    records = Records(database, tools, TOOL)
    kept = records.put(replace(tool, mine=True))
    assert kept.id > 0
    assert records.get(kept.id) == replace(tool, id=kept.id)
    assert replace(tool, id=kept.id) in records.select(shelf=tool.shelf)
    changed = replace(kept, shelf="elsewhere", marks=(), mine=False)
    records.put(changed)
    assert records.get(kept.id) == changed
    assert records.remove(kept.id)
    assert not records.remove(kept.id)
    assert records.get(kept.id) is None


def test_a_list_is_the_same_one_until_a_record_is_written_and_goes_by_its_order(database: Database) -> None:
    records, writer = Records(database, tools, BY_SHELF), Records(database, tools, TOOL)
    for shelf in ("b", "a", "b"):
        writer.put(Tool(shelf=shelf))
    found = records.all()
    assert [one.shelf for one in found] == ["a", "b", "b"]
    assert found[1].id < found[2].id
    assert records.all() is found
    writer.remove(found[0].id)
    assert [one.shelf for one in records.all()] == ["b", "b"]
