"""Reading TOML as people write it: sizes and durations with their units, and mistakes with their place."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import parse_duration, parse_size


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `kind` is "text", "int", "flag", "size" or "duration"; sizes are bytes and durations seconds when read."""

    name: str
    kind: str
    default: Any
    help: str


def read_toml(file: Path) -> dict[str, Any]:
    """The tables of a file; none when it is absent. Raises `Invalid`."""
    return tables_of(read_text(file), str(file))


def read_text(file: Path) -> str:
    """The text of a file; "" when it is absent. Raises `Invalid`."""
    try:
        return file.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not valid TOML: {error}.") from error


def tables_of(text: str, where: str) -> dict[str, Any]:
    """The tables of a text, which stands at `where`. Raises `Invalid`."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{where} is not valid TOML: {error}.") from error


def known(name: str, valid: Mapping[str, Any], where: str) -> str:
    """Return `name` if it is one of the `valid`; raise `Invalid` with the nearest one if not."""
    if name in valid:
        return name
    near = difflib.get_close_matches(name, valid, n=1)
    remedy = f'Did you mean "{near[0]}"?' if near else f"Valid are: {', '.join(valid)}."
    raise Invalid(f'{where}: there is no setting "{name}".', remedy=remedy)


def convert(setting: Setting, value: Any, where: str) -> Any:
    """Return the value as the setting is read (bytes, seconds); raise `Invalid` with the place for what it cannot be."""
    kind = setting.kind
    if kind == "int" and isinstance(value, str) and value.lstrip("-").isdigit():
        value = int(value)
    if kind == "flag" and isinstance(value, str) and value.lower() in _FLAGS:
        value = _FLAGS[value.lower()]
    try:
        if kind == "size" and isinstance(value, str):
            return parse_size(value)
        if kind == "duration" and isinstance(value, str):
            return parse_duration(value)
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}", remedy=error.remedy) from error
    expected = {"text": str, "int": int, "flag": bool}.get(kind)
    if expected is None or not isinstance(value, expected) or (kind == "int" and isinstance(value, bool)):
        raise Invalid(f"{where} is {value!r}.", remedy=f"It must be {_EXPECTED[kind]}.")
    if isinstance(value, int) and value < 0:
        raise Invalid(f"{where} is {value}.", remedy="It must be 0 or more.")
    return value


_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_EXPECTED = {
    "text": "a text",
    "int": "a whole number",
    "flag": "true or false",
    "size": 'a size such as "8G"',
    "duration": 'a duration such as "2h"',
}
