"""The JSON schema of a cost file (JSON Schema, draft 2020-12), for editors: they complete keys and mark what is wrong."""

from __future__ import annotations

from typing import Any

from carrel.core.worth.declaring import Key, keys_of, required
from carrel.core.worth.model import LISTS, SINGLE

_NUMBER = r"^[0-9][0-9_]*(\.[0-9]+)?\s*"
_WHOLE = {"type": "integer", "minimum": 0}


def costs_schema() -> dict[str, Any]:
    """Return the schema. What it lets through may still be wrong in ways that only `carrel report roi` can tell."""
    tables: dict[str, Any] = {name: _table(table) for name, table in SINGLE.items()}
    tables |= {name: {"type": "array", "items": _table(table)} for name, table in LISTS.items()}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "costs.toml",
        "type": "object",
        "properties": tables,
        "required": ["lab"],
        "additionalProperties": False,
    }


def _table(table: type) -> dict[str, Any]:
    return {
        "type": "object",
        "description": (table.__doc__ or "").splitlines()[0],
        "properties": {name: _value(key) | {"description": key.help} for name, key in keys_of(table).items()},
        "required": sorted(required(table)),
        "additionalProperties": False,
    }


def _value(key: Key) -> dict[str, Any]:
    if key.is_quantity:
        return {"type": "string", "pattern": _NUMBER + (r"[A-Za-z]" if key.kind else "%$")}
    match key.kind:
        case "count":
            return dict(_WHOLE)
        case "years" | "jobs":
            return {"type": "array", "items": dict(_WHOLE), "minItems": 1}
        case "names":
            return {"type": "array", "items": {"type": "string"}, "minItems": 1}
        case "currency":
            return {"type": "string", "pattern": "^[A-Z]{3}$"}
        case "date":
            # TOML has dates; JSON schemas do not, and editors show them as texts.
            return {}
        case _:
            return {"type": "string", **({"enum": list(key.choices)} if key.choices else {})}
