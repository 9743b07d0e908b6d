"""A store on every database that a lab may use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from carrel.core.domain.user import User
from carrel.lab.store import Database, Store


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Ada and Bob are known."""
    store = Store(Database(database_url))
    for name in ("ada", "bob"):
        store.people.add(User(subject=name, name=name), now=1.0)
    yield store
    store.close()
