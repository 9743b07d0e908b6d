"""The migrations, from nothing, give the schema that the code believes in."""

from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import IntegrityError

import carrel.lab.store.schema as schema
from carrel.core.control.token_port import NewToken
from carrel.core.domain.errors import Conflict
from carrel.core.domain.user import Role, User
from carrel.lab.store import Database, Store
from carrel.lab.store.tables import metadata


@pytest.mark.gate
def test_migrations_give_the_schema_of_the_tables(database_url: str) -> None:
    database = Database(database_url)
    schema.upgrade(database)
    with database.read() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
        indexes = {index["name"] for table in metadata.tables for index in sa.inspect(connection).get_indexes(table)}
    database.close()
    assert differences == []
    # Partial indexes are not compared by alembic, and the hot paths stand on them.
    assert {"ix_jobs_active", "ix_outbox_pending", "ix_jobs_owner_id", "ix_events_job_id_id"} <= indexes


def test_head_names_the_newest_migration() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).parent / "migrations"))
    assert scripts.get_current_head() == schema.HEAD


def test_a_database_of_a_newer_carrel_is_refused_untouched(database_url: str) -> None:
    store = Store(Database(database_url))
    with store.database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(Conflict, match="9999.*newer version"):
        schema.upgrade(store.database)
    assert schema.current_revision(store.database) == "9999"
    store.close()


def test_opening_twice_changes_nothing(database_url: str) -> None:
    first = Store(Database(database_url))
    lab = first.lab_id()
    first.close()
    second = Store(Database(database_url))
    assert second.lab_id() == lab
    second.close()


def test_attempts_from_before_cells_were_charged_are_kept(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(sa.text("INSERT INTO users VALUES ('ada', 'Ada', 'user', 'default', 1.0)"))
        connection.execute(
            sa.text(
                "INSERT INTO jobs (id, kind, owner, account, name, qos, cpus, memory, gpus, time, state, reason, message,"
                " submitted_at, ended_at, attempt, spec) VALUES"
                " (1, 'task', 'ada', 'default', 'n', 'q', 1, 1, 1, 60, 'COMPLETED', 'Completed', '', 1.0, 9.0, 1, '{}')"
            )
        )
        connection.execute(
            sa.text(
                "INSERT INTO attempts (job_id, number, node, devices, state, reason, message, leased_at, ended_at)"
                " VALUES (1, 1, 'n1', '[]', 'COMPLETED', 'Completed', '', 2.0, 9.0)"
            )
        )
    store = Store(database)
    assert [(item.since, item.until, item.lease_seconds) for item in store.jobs.used(since=0.0)] == [(2.0, 9.0, 0.0)]
    store.close()


def test_users_from_before_there_were_operators_keep_their_tokens(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0011")
        connection.execute(sa.text("INSERT INTO users VALUES ('ada', 'Ada', 'admin', 'default', 1.0)"))
        connection.execute(sa.text("INSERT INTO tokens VALUES ('digest', 'ada', 1.0, NULL)"))
    store = Store(database)
    found = store.tokens.find("digest")
    assert found is not None
    assert found[1].role is Role.ADMIN
    store.people.add(User(subject="olga", name="Olga", role=Role.OPERATOR), now=2.0)
    store.people.add(User(subject="mara", name="Mara", role=Role.MANAGER), now=2.0)
    assert [user.role for user in store.people.list()] == [Role.ADMIN, Role.MANAGER, Role.OPERATOR]
    with pytest.raises(IntegrityError), database.write() as connection:
        connection.execute(
            sa.text("INSERT INTO users (subject, name, role, account, created_at) VALUES ('eve', 'Eve', 'king', 'x', 1.0)")
        )
    store.close()


def test_tokens_from_before_they_had_names_go_on_as_they_were(database_url: str) -> None:
    database = Database(database_url)
    with database.write() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0011")
        for name, role in (("ada", "user"), ("root", "admin")):
            row = {"name": name, "role": role}
            connection.execute(sa.text("INSERT INTO users VALUES (:name, :name, :role, 'default', 1.0)"), row)
        for number, (who, revoked) in enumerate((("root", None), ("ada", None), ("ada", 5.0))):
            row = {"digest": f"d{number}", "who": who, "at": float(number), "revoked": revoked}
            connection.execute(sa.text("INSERT INTO tokens VALUES (:digest, :who, :at, :revoked)"), row)
    store = Store(database)
    found = [(one.id, one.subject, one.scopes, one.expires_at, one.valid(9.0)) for one in store.tokens.list(None)]
    assert found == [
        (1, "root", ("all",), None, True),
        (2, "ada", ("all",), None, True),
        (3, "ada", ("all",), None, False),
    ]
    assert store.tokens.find("d1") is not None
    new = NewToken(digest="d9", subject="ada", name="new", scopes=("read",), created_by="ada")
    assert store.tokens.add(new, now=9).id == 4
    store.close()
