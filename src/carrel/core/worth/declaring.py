"""How a key of the cost file is declared: one declaration, from which reading, the schema and the table of assumptions follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

_KEY = "key"
#: What is written into a key of each kind. Kinds that are not here are units, with "¤" for any currency.
KINDS: Mapping[str, str] = {
    "text": "a text",
    "date": "a date without quotes, such as 2024-03-01",
    "count": "a whole number, 0 or more",
    "years": "the years it holds for, such as [2025, 2026]",
    "names": 'a list of texts, such as ["ada", "bob"]',
    "jobs": "a list of numbers of jobs, such as [12, 13]",
    "currency": 'the three letters of a currency, such as "EUR"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a table."""

    #: One of `KINDS`, or a unit.
    kind: str
    #: What it is, in a sentence.
    help: str
    #: True of a number that is an assumption: sensitivity asks what comes of another one.
    varies: bool = False
    #: The only values; empty where others are possible.
    choices: tuple[str, ...] = ()

    @property
    def is_quantity(self) -> bool:
        """True where its value is a number with a unit."""
        return self.kind not in KINDS


def key(kind: str, help: str, *, default: Any = MISSING, varies: bool = False, choices: tuple[str, ...] = ()) -> Any:
    """The field of a dataclass that is a key of a table. Without a default it has to be there."""
    metadata = {_KEY: Key(kind=kind, help=help, varies=varies, choices=choices)}
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def keys_of(table: Any) -> Mapping[str, Key]:
    """The keys of a table (a class, or one of its values) by name."""
    return {each.name: each.metadata[_KEY] for each in fields(table) if _KEY in each.metadata}


def required(table: Any) -> frozenset[str]:
    """Those that have to be there."""
    return frozenset(each.name for each in fields(table) if each.default is MISSING and _KEY in each.metadata)
