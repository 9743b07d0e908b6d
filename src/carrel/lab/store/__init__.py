"""What a lab remembers: tables and queries. SQLite by default, PostgreSQL by URL; the same code and tests for both."""

from carrel.lab.store.database import Database
from carrel.lab.store.store import Store
