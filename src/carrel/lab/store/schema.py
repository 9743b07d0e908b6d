"""Brings a database to the present schema, from nothing or from any earlier release."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from carrel.core.domain.errors import Conflict
from carrel.lab.store.database import Database

#: The newest migration; `tests/store/test_migrations.py` compares it with the files.
HEAD = "0035"
_MIGRATIONS = Path(__file__).parent / "migrations"


def upgrade(database: Database) -> None:
    """Apply what is missing. Raises `Conflict` when a newer Carrel has written this database."""
    revision = current_revision(database)
    if revision == HEAD:
        return
    # Imported only when there is something to do: an ordinary start must not pay for it.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if revision is not None and revision not in known:
        raise Conflict(
            f"The lab's database has schema {revision}, which this version of Carrel does not know.",
            remedy="It was written by a newer version: use that one, or another home directory.",
        )
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def current_revision(database: Database) -> str | None:
    """The schema that the database has, or None when it is empty."""
    with database.read() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        try:
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        except DBAPIError:
            return None
