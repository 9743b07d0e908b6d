"""Frozen values to JSON and back, driven by their own type hints.

Inside Carrel values travel as dataclasses; they are written down (job rows, launch files, journals) as plain JSON. One
function each way keeps the written form equal to the class: a field that is unknown when read is an error, because a
silently dropped field is how parameters get lost.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return `value` as JSON-ready dicts, lists and scalars. Fields that hold their default None are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
        return {name: item for name, item in plain.items() if item is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(item) for item in value)
    return value


def from_plain(cls: type[T], plain: Any) -> T:
    """Return the `cls` that `to_plain` wrote; raise `ValueError` on an unknown field or a wrong shape."""
    return typing.cast(T, _build(cls, plain, cls.__name__))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(hint: Any, plain: Any, where: str) -> Any:
    if hint is Any:
        return plain
    origin = typing.get_origin(hint)
    if origin is Union or origin is types.UnionType:
        return _build_union(hint, plain, where)
    if isinstance(hint, type) and is_dataclass(hint):
        return _build_dataclass(hint, plain, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(plain)
    if origin in (tuple, list, frozenset, set):
        return origin(_build(typing.get_args(hint)[0], item, where) for item in plain)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        key_hint, item_hint = typing.get_args(hint)
        if key_hint is str:
            for key in plain:
                _build_scalar(str, key, f"{where}: a key")
        return {key: _build(item_hint, item, f"{where}.{key}") for key, item in plain.items()}
    return _build_scalar(hint, plain, where)


def _build_union(hint: Any, plain: Any, where: str) -> Any:
    options = typing.get_args(hint)
    if plain is None and type(None) in options:
        return None
    own = [option for option in options if option is not type(None)]
    for option in own[:-1]:
        try:
            return _build(option, plain, where)
        except (ValueError, TypeError):
            continue
    return _build(own[-1], plain, where)


def _build_scalar(hint: Any, plain: Any, where: str) -> Any:
    """Return a scalar of its type that a database takes: an integer of 64 bits, a finite number, text of whole characters."""
    if type(plain) is int and not -(2**63) <= plain < 2**63:
        raise ValueError(f"{where}: an integer of more than 64 bits")
    if hint is float and type(plain) is int:
        plain = float(plain)
    if hint in (bool, int, float, str) and (not isinstance(plain, hint) or (isinstance(plain, bool) and hint is not bool)):
        raise ValueError(f"{where}: expected {hint.__name__}, got {type(plain).__name__}")
    if hint is float and not math.isfinite(plain):
        raise ValueError(f"{where}: {plain} is not a finite number")
    if hint is str:
        plain.encode()
        if "\0" in plain:  # PostgreSQL has no text with it
            raise ValueError(f"{where}: a NUL character")
    return plain


def _build_dataclass(cls: type, plain: Any, where: str) -> Any:
    if not isinstance(plain, Mapping):
        raise ValueError(f"{where}: expected an object, got {type(plain).__name__}")
    hints = _hints(cls)
    unknown = sorted(set(plain) - set(hints))
    if unknown:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}")
    return cls(**{name: _build(hints[name], item, f"{where}.{name}") for name, item in plain.items()})
