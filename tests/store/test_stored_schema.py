"""A new database gets the tables, and one of another Carrel is refused as it is."""

import pytest
import sqlalchemy as sa

import carrel.lab.store.schema as schema
from carrel.core.domain.errors import Conflict
from carrel.lab.store import Database, Store
from carrel.lab.store.tables import metadata


@pytest.mark.gate
def test_an_empty_database_gets_all_tables_and_indexes(database_url: str) -> None:
    store = Store(Database(database_url))
    with store.database.read() as connection:
        there = sa.inspect(connection)
        assert set(metadata.tables) <= set(there.get_table_names())
        indexes = {index["name"] for table in metadata.tables for index in there.get_indexes(table)}
    store.close()
    # The hot paths stand on these.
    assert {"ix_jobs_active", "ix_outbox_pending", "ix_jobs_owner_id", "ix_events_job_id_id"} <= indexes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE lab SET value = '9' WHERE key = 'schema'", "has schema 9; this Carrel has schema 1"),
        ("CREATE TABLE alembic_version (version_num VARCHAR(32))", "of before the first release; this Carrel has schema 1"),
        (
            "ALTER TABLE attempts DROP COLUMN metric_at",
            r"another checkout of Carrel\. They differ in: attempts\.metric_at\. Start it",
        ),
        ("ALTER TABLE jobs ADD COLUMN moon INTEGER", r"They differ in: jobs\.moon\. Start it"),
        ("DROP TABLE outbox", r"They differ in: outbox\. Start it"),
    ],
)
def test_a_database_of_another_carrel_is_refused_untouched(database_url: str, change: str, words: str) -> None:
    store = Store(Database(database_url))
    with store.database.write() as connection:
        connection.execute(sa.text(change))
    before = schema.present_schema(store.database)
    with pytest.raises(Conflict, match=words):
        Store(store.database)
    assert schema.present_schema(store.database) == before
    store.close()


def test_opening_twice_changes_nothing(database_url: str) -> None:
    first = Store(Database(database_url))
    lab = first.lab_id()
    first.close()
    second = Store(Database(database_url))
    assert second.lab_id() == lab
    second.close()
