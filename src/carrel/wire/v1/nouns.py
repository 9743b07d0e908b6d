"""The wire format of nouns (`carrel.core.domain.noun`), made from their classes: what a caller asks for, what the lab answers."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, PlainSerializer, TypeAdapter, create_model, model_validator
from pydantic_core import CoreSchema, core_schema

from carrel.core.domain.errors import Invalid
from carrel.core.domain.noun import MOMENT, UNKNOWN, Noun, shown, shown_fields
from carrel.core.domain.units import LATEST
from carrel.wire.v1.base import Request, Response

T = TypeVar("T")


class _Asked(Request):
    @model_validator(mode="before")
    @classmethod
    def _say_nothing_by_null(cls, found: Any) -> Any:
        return {name: value for name, value in found.items() if value is not None} if isinstance(found, dict) else found


def _once(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Remember what was made of each class or noun."""
    return cache(make)


class Changed(Response):
    """What a change has done."""

    #: False when it was so before.
    changed: bool


@dataclass(frozen=True)
class _Date:
    """Unix seconds inside, a date and time with its zone on the wire."""

    #: Then 0 inside is null on the wire.
    unknown: bool

    def __get_pydantic_core_schema__(self, _source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        """As pydantic asks for it."""
        date = core_schema.datetime_schema()
        out = core_schema.plain_serializer_function_ser_schema(
            lambda seconds: None if self.unknown and not seconds else _date(seconds),
            return_schema=core_schema.nullable_schema(date) if self.unknown else date,
            when_used="json",
        )
        return core_schema.no_info_wrap_validator_function(
            lambda value, read: 0.0 if self.unknown and value is None else _seconds(value, read),
            handler(datetime),
            serialization=out,
        )


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _seconds(value: Any, read: Callable[[Any], datetime]) -> float:
    if isinstance(value, int | float):
        seconds = float(value)
    else:
        at = read(value)
        if at.tzinfo is None:
            raise Invalid(f'"{at.isoformat()}" has no zone that says when it is.', remedy='End it in "Z" or an offset: "+10:00".')
        seconds = at.timestamp()
    if not 0 <= seconds <= LATEST:  # what is kept has to be shown again, as a date in every zone
        raise Invalid(f"{value} is no moment between 1970 and 2255.", remedy="Name a day in that time.")
    return seconds


@_once
def asked_of(noun: Noun[Any]) -> Any:
    """The body of a request for one: what a caller fills in."""
    return _made(f"{noun.type.__name__}Request", _Asked, noun.type.__doc__, _fields(noun.type, noun.asked))


@_once
def shown_of(kind: Any) -> Any:
    """One, as the lab answers with it: without what is private."""
    worked_out = {name: (get_type_hints(one.fget)["return"], ...) for name, one in vars(kind).items() if isinstance(one, shown)}
    return _made(kind.__name__, Response, kind.__doc__, _fields(kind, shown_fields(kind)) | worked_out)


@_once
def list_of(noun: Noun[Any]) -> Any:
    """All that a caller may see."""
    kind, listed = noun.type, types.GenericAlias(list, (shown_of(noun.type),))
    return _made(f"{kind.__name__}List", Response, kind.__doc__, {noun.plural: (listed, ...)})


@_once
def change_of(noun: Noun[Any]) -> Any:
    """One that was kept; `changed` is false when there was the very same already."""
    kind = noun.type
    return _made(f"{kind.__name__}Change", Changed, change_of.__doc__, {noun.name: (shown_of(kind), ...)})


def _made(name: str, base: type[BaseModel], about: str | None, found: dict[str, Any]) -> Any:
    return create_model(name, __base__=base, __doc__=about, **found)


def show(value: Any) -> Any:
    """The value of a noun, for the wire."""
    return shown_of(type(value)).model_validate(value, from_attributes=True)


def value_of(kind: type[T], model: BaseModel, **more: Any) -> T:
    """The value of a noun that a model of the wire holds."""
    read: TypeAdapter[T] = _adapter(kind)
    return read.validate_python({**model.model_dump(warnings=False), **more})


@_once
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _fields(kind: Any, names: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: (_hint(hints[one.name]), _default(one)) for one in fields(kind) if one.name in names}


def _default(one: Any) -> Any:
    if one.default_factory is not MISSING:
        return Field(default_factory=one.default_factory, repr=one.repr)
    return Field(... if one.default is MISSING else one.default, repr=one.repr)


def _hint(hint: Any) -> Any:
    inner: Any = get_args(hint)
    if get_origin(hint) is Annotated and MOMENT in hint.__metadata__:
        return Annotated[float, _Date(UNKNOWN in hint.__metadata__)]
    if is_dataclass(hint):
        return shown_of(hint)
    if get_origin(hint) is tuple:
        return types.GenericAlias(tuple, (_hint(inner[0]), ...))
    if get_origin(hint) is Mapping:
        return types.GenericAlias(dict, (str, _hint(inner[1])))
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_hint(part) for part in inner)]  # noqa: UP007 - made at run time
    if get_origin(hint) is frozenset:  # whose order is another one in each process
        return Annotated[hint, PlainSerializer(sorted, return_type=list[str])]
    return hint
