"""How a noun is declared: one frozen dataclass, from which its table, its wire format and its client follow.

A field says by its default who fills it in. One with a plain default, or none, is what a caller asks for. docs/decisions/0099.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Generic, TypeVar

T = TypeVar("T")

#: Unix seconds; on the wire, a date and time with its zone.
MOMENT = "moment"
Moment = Annotated[float, MOMENT]
#: The same, or 0 while it is not known: null on the wire.
UNKNOWN = "unknown"
UnknownMoment = Annotated[float, MOMENT, UNKNOWN]
_FILLED_IN = "carrel"


def private(**default: Any) -> Any:
    """A field that the lab fills in and keeps, and that never leaves the lab."""
    return field(metadata={_FILLED_IN: "private"}, **default)


def given(**default: Any) -> Any:
    """A field that a caller fills in; the lab neither keeps it nor shows it again."""
    return field(metadata={_FILLED_IN: "given"}, repr=False, **default)


def stamped(**default: Any) -> Any:
    """A field that the lab fills in and keeps; callers read it."""
    return field(metadata={_FILLED_IN: "stamped"}, **default)


def derived(**default: Any) -> Any:
    """A field that the lab works out for each reader; it is not kept."""
    return field(metadata={_FILLED_IN: "derived"}, **default)


class shown(property):
    """A property that is sent with the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noun(Generic[T]):
    """A class whose values the lab keeps, lists, takes and gives by the same few lines for all."""

    type: type[T]
    #: What one is called, and several: a key in JSON, and a part of paths.
    name: str
    plural: str
    #: The field that tells one from the others that a caller can see.
    key: str = "name"
    #: The field that lists go by, before the key.
    order: str = ""

    @property
    def asked(self) -> Sequence[str]:
        """The fields that a caller fills in, beside the key."""
        return [name for name, filled_in in _filled_in(self.type).items() if filled_in in (None, "given") and name != self.key]


def kept_fields(kind: type) -> Sequence[str]:
    """The fields that are written down."""
    return [name for name, filled_in in _filled_in(kind).items() if filled_in not in ("derived", "given")]


def shown_fields(kind: type) -> Sequence[str]:
    """The fields that may leave the lab."""
    return [name for name, filled_in in _filled_in(kind).items() if filled_in not in ("private", "given")]


def _filled_in(kind: Any) -> dict[str, str | None]:
    return {one.name: one.metadata.get(_FILLED_IN) for one in fields(kind)}
