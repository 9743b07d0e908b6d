"""Makes the tables of a new database, and refuses one of another Carrel.

There is one schema until the first release. From then on a change of it comes with a migration.
"""

from __future__ import annotations

import sqlalchemy as sa

from carrel.core.domain.errors import Conflict
from carrel.lab.store.database import Database
from carrel.lab.store.tables import lab, metadata

#: Number of the schema of `carrel.lab.store.tables` and its neighbours.
SCHEMA = "1"
_KEY = "schema"
#: In which databases that were written before the first release have their number.
_BEFORE = "alembic_version"


def prepare(database: Database) -> None:
    """Make the tables in an empty database. Raises `Conflict` for one with another schema, which stays as it is."""
    found = present_schema(database)
    if found is None:
        with database.write() as connection:
            metadata.create_all(connection)
            connection.execute(sa.insert(lab), {"key": _KEY, "value": SCHEMA})
        return
    if found != SCHEMA:
        fault = f"The lab's database has schema {found}; this Carrel has schema {SCHEMA}."
    elif differing := _differing(database):  # before the first release, tables change and the number stays
        fault = f"The lab's database is of another checkout of Carrel. They differ in: {', '.join(differing)}."
    else:
        return
    raise Conflict(fault, remedy="Start it with the Carrel that wrote it, or start a lab in another home directory.")


def present_schema(database: Database) -> str | None:
    """Return the number of the schema that the database has; None when it is empty."""
    with database.read() as connection:
        tables = sa.inspect(connection)
        if tables.has_table(_BEFORE):
            return f"{connection.execute(sa.text(f'SELECT version_num FROM {_BEFORE}')).scalar()} of before the first release"
        if not tables.has_table(lab.name):
            return None
        return str(connection.execute(sa.select(lab.c.value).where(lab.c.key == _KEY)).scalar())


def _differing(database: Database) -> list[str]:
    """Return the tables that the database lacks, and the columns that only it has, or only the tables here."""
    with database.read() as connection:
        read = sa.inspect(connection).get_multi_columns()
    there = {name: {column["name"] for column in columns} for (_, name), columns in read.items()}
    found = []
    for name, table in sorted(metadata.tables.items()):
        if name not in there:
            found.append(name)
        else:
            found += [f"{name}.{column}" for column in sorted(there[name] ^ {column.name for column in table.columns})]
    return found
