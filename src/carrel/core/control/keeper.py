"""What callers do with the records of any noun: list them, look at one, keep one, remove one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class RecordStore(Protocol[T]):
    """The records of one noun; `carrel.lab.store.records` is one for all nouns."""

    def put(self, value: T) -> T:
        """Keep the value in the place of one with the same key. A key of 0 stands for the next number; returns what is kept."""
        ...

    def get(self, *key: Any) -> T | None:
        """The value with this key, or None."""
        ...

    def remove(self, *key: Any) -> bool:
        """Forget the value with this key; return whether there was one."""
        ...

    def all(self) -> Sequence[T]:
        """All there are, in order. While none is written, that is the very same sequence."""
        ...

    def select(self, **equal: Any) -> Sequence[T]:
        """Those that have these values, in order."""
        ...
