"""What a lab remembers: tables, queries, migrations. SQLite by default, PostgreSQL by URL; the same code and tests for both."""

from carrel.store.database import Database
from carrel.store.store import Store

__all__ = ["Database", "Store"]
