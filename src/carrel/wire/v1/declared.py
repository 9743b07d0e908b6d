"""Requests that are made from a declaration of options (`carrel.core.submission`)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, create_model

from carrel.core.submission import Option, options_of
from carrel.wire.v1.base import Request


def request_of(declaration: type) -> type[Request]:
    """Return a model that has the options of a dataclass (`carrel.core.submission`) as people write them; None: nothing is
    said."""
    found: dict[str, Any] = {}
    for name, option in options_of(declaration).items():
        if option.in_requests:
            found[name] = _field(option)
            if option.synonym:
                found[option.synonym] = _field(option, f"The same as {name}.")
    return create_model(declaration.__name__, __base__=Request, **found)


def _field(option: Option, description: str = "") -> tuple[Any, Any]:
    description = description or option.help
    kind = option.kind
    if kind.plain is list:
        return list[str], Field(default_factory=list, description=description)
    if kind.plain is dict:
        return dict[str, str], Field(default_factory=dict, description=description)
    plain: Any = Literal[kind.choices] if kind.closed else kind.plain
    return plain | None, Field(default=None, description=description)
