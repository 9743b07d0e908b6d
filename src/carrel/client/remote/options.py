"""What `%%remote` takes: `name=value`, as `carrel.Executor` has them."""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import GIB, parse_size

_NUMBERS = ("gpus", "cpus", "retries")
_WORDS = ("memory", "time", "gpu_type", "image", "qos", "partition", "account", "name")
_OWN = ("as", "workers", "idle", "limit", "requirements", "reserve")
KNOWN = tuple(sorted((*_NUMBERS, *_WORDS, *_OWN)))
#: Most bytes that travel with a cell, or come back, if nothing else is said.
LIMIT = GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for."""

    #: Of `carrel.Executor`.
    pool: dict[str, Any] = field(default_factory=dict)
    #: Names that come back.
    back: tuple[str, ...] = ()
    limit: int = LIMIT

    def over(self, defaults: Options) -> Options:
        """These, and where they say nothing, `defaults`."""
        limit = defaults.limit if self.limit == LIMIT else self.limit
        return replace(self, pool={**defaults.pool, **self.pool}, limit=limit)


def parse(line: str) -> Options:
    """Read the line of the magic. Raises `Invalid`."""
    pool: dict[str, Any] = {}
    back: tuple[str, ...] = ()
    limit = LIMIT
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise Invalid(f"%%remote {line}: {error}.", remedy="Say name=value, with quotes around spaces.") from None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in KNOWN:
            raise Invalid(f'%%remote has no option "{word}".', remedy=_nearest(name))
        if name == "as":
            back = tuple(part for part in value.split(",") if part)
            if not back or not all(part.isidentifier() for part in back):
                raise Invalid(f"as={value} names no variables.", remedy="Say as=result, or as=a,b.")
        elif name == "limit":
            limit = parse_size(value)
        elif name == "requirements":
            pool[name] = [] if value in ("", "none") else value
        elif name == "reserve":
            pool[name] = _yes(value)
        elif name == "idle":
            pool["idle_time"] = _seconds(value)
        elif name in (*_NUMBERS, "workers"):
            pool["max_workers" if name == "workers" else name] = _number(name, value)
        else:
            pool[name] = value
    return Options(pool=pool, back=back, limit=limit)


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or (name == "workers" and not int(value)):
        raise Invalid(f"{name}={value} is no number of {name}.", remedy=f"Say {name}=1.")
    return int(value)


def _yes(value: str) -> bool:
    if value not in ("yes", "no"):
        raise Invalid(f"reserve={value} is neither yes nor no.", remedy="Say reserve=yes, or leave it out.")
    return value == "yes"


def _seconds(value: str) -> float:
    from carrel.core.domain.units import parse_duration

    return float(parse_duration(value))


def _nearest(name: str) -> str:
    found = difflib.get_close_matches(name, KNOWN, 1)
    return f"Did you mean {found[0]}=?" if found else f"There are: {', '.join(KNOWN)}."
