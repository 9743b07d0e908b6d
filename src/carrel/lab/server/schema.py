"""The JSON schema of carrel.toml (JSON Schema, draft 2020-12), for editors: they complete keys and mark what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from carrel.lab.server.oidc_settings import OIDC
from carrel.lab.server.oidc_settings import TABLES as OIDC_TABLES
from carrel.lab.server.rules import ACCOUNT_KEYS, PRIORITY_KEYS, QOS_KEYS, TABLES, partition_keys
from carrel.lab.server.settings import SETTINGS
from carrel.lab.server.sign_in_settings import PAM
from carrel.lab.server.toml import Setting

_AMOUNT = {"type": ["string", "number"]}
#: What a value is like, by its kind; a value of another kind can be anything.
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "size": _AMOUNT,
    "duration": _AMOUNT,
}


def settings_schema() -> dict[str, Any]:
    """Return the schema. What it lets through may still be wrong in ways that only `carrel up` can tell."""
    accounts: dict[str, Any] = {key: {} for key in ACCOUNT_KEYS}
    tables = {
        "qos": _named(_object(_keys(QOS_KEYS)), "Classes of service."),
        "partitions": _named(_object({key: {} for key in partition_keys()}), "Parts of the lab."),
        "partition_names": _named({"type": "string"}, "What partitions of elsewhere are called here."),
        "accounts": _named(_object(accounts), "Who shares the lab, and in which parts."),
        "priority": _object(_keys(PRIORITY_KEYS)) | {"description": "What decides who goes next."},
    }
    assert tuple(tables) == TABLES
    oidc = _object({**_settings(OIDC), **{table: {"type": "object"} for table in OIDC_TABLES}})
    sign_in = _object({"pam": _object(_settings(PAM)), "oidc": oidc}) | {"description": "Who says who people are."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "carrel.toml",
        **_object({**_settings(SETTINGS), **tables, "sign_in": sign_in}),
    }


def _settings(settings: Iterable[Setting]) -> dict[str, Any]:
    return {setting.name: {**_KINDS.get(setting.kind, {}), "description": setting.help} for setting in settings}


def _keys(keys: Mapping[str, str]) -> dict[str, Any]:
    return {key: dict(_KINDS.get(kind, {})) for key, kind in keys.items()}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _named(value: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": dict(value), "description": description}
