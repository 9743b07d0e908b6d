"""Options of a task that one engine alone understands. Each engine declares its own.

The entry point of the group `carrel.task_options` that is called like the engine names a dataclass whose fields are made with
`option`. Whoever submits tasks imports it, so its module needs nothing of the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest
from carrel.core.submission.installed import installed
from carrel.core.submission.option import Option, options_of

GROUP = "carrel.task_options"


@cache
def engine_options() -> Mapping[str, Mapping[str, Option]]:
    """Return the options of each engine that declares some, by the engine's name and the option's."""
    return {engine: options_of(declaration) for engine, declaration in installed(GROUP).items()}


def read_engine_options(asked: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the values as the engines get them. Raises `Invalid`, with the nearest name, for what no engine declares."""
    declared = engine_options()
    found: dict[str, dict[str, Any]] = {}
    for engine, said in asked.items():
        if engine not in declared:
            raise Invalid(f'There is no engine "{engine}" with options.', remedy=suggest(engine, list(declared), what="Engines"))
        found[engine] = {name: _read(engine, name, value, declared[engine]) for name, value in said.items()}
    return found


def _read(engine: str, name: str, value: Any, declared: Mapping[str, Option]) -> Any:
    if name not in declared:
        raise Invalid(f'{engine}: there is no option "{name}".', remedy=suggest(name, list(declared), what="Options"))
    kind = declared[name].kind
    if not isinstance(value, kind.plain) or (kind.plain is int and isinstance(value, bool)):
        words = {int: "a whole number", str: "a text", bool: "true or false", list: "a list", dict: "an object"}
        raise Invalid(f"{engine}: {name} is {value!r}.", remedy=f"It must be {words[kind.plain]}.")
    try:
        return kind.read(name, value)
    except Invalid as error:
        raise Invalid(f"{engine}: {error.message}", remedy=error.remedy) from None
