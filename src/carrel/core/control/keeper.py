"""What callers do with the records of any noun: list them, look at one, keep one, remove one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from carrel.core.domain.errors import NotFound
from carrel.core.domain.noun import Noun
from carrel.core.domain.ports import Clock
from carrel.core.domain.user import Caller

T = TypeVar("T")


class RecordStore(Protocol[T]):
    """The records of one noun; `carrel.lab.store.records` is one for all nouns."""

    def put(self, value: T) -> T:
        """Keep the value in the place of one with the same key. A key of 0 stands for the next number; returns what is kept."""

    def get(self, *key: Any) -> T | None:
        """The value with this key, or None."""

    def remove(self, *key: Any) -> bool:
        """Forget the value with this key; return whether there was one."""

    def all(self, **equal: Any) -> Sequence[T]:
        """As `select`. While none is written, that is the very same sequence: it is kept in memory."""

    def select(self, **equal: Any) -> Sequence[T]:
        """Those that have these values, each or one of a tuple, in order; all without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper(Generic[T]):
    """The records of one noun. Thread-safe; raises the errors of `carrel.core.domain.errors`.

    Its callers have asked already whether the person may do it at all (`carrel.lab.gateway.routes.nouns`). A noun with
    rules of its own has a class below this one, which says them in `checked`, `seen` and `changed`.
    """

    noun: Noun[T]
    records: RecordStore[T]
    clock: Clock

    def list(self, caller: Caller) -> Sequence[T]:
        """Those that the caller may see, as they may see them."""
        found = (self.seen(caller, one) for one in self.records.all())
        return [one for one in found if one is not None]

    def get(self, caller: Caller, key: str | int) -> T:
        """One. Raises `NotFound`."""
        found = self.records.get(key)
        seen = None if found is None else self.seen(caller, found)
        if seen is None:
            raise self.missing(caller, key)
        return seen

    def put(self, caller: Caller, asked: T) -> tuple[bool, T]:
        """Keep one in the place of one with the same key; return whether there was none like it, and what is kept."""
        value = self.checked(caller, asked)
        changed = self.records.get(getattr(asked, self.noun.key)) != value
        if changed:
            value = self.records.put(value)
            self.changed()
        return changed, self.seen(caller, value) or value

    def remove(self, caller: Caller, key: str | int) -> None:
        """Forget one. Raises `NotFound`."""
        if not self.records.remove(key):
            raise self.missing(caller, key)
        self.changed()

    def missing(self, caller: Caller, key: str | int) -> NotFound:
        """The error for one that is not there."""
        there = ", ".join(str(getattr(one, self.noun.key)) for one in self.list(caller)) or "none"
        return NotFound(f'There is no {self.noun.name} "{str(key)[:80]}".', remedy=f"There are: {there}.")

    # ---- what a noun may have of its own

    def checked(self, caller: Caller, asked: T) -> T:  # noqa: ARG002
        """Return what is kept of what the caller asks for. Raises `Invalid`, `NotFound`, `Conflict`."""
        return asked

    def seen(self, caller: Caller, value: T) -> T | None:  # noqa: ARG002
        """Return what the caller may see of it; None: nothing."""
        return value

    def changed(self) -> None:
        """One was kept or forgotten just now."""
