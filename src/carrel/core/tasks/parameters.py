"""Parameters of an entry point: their types, and what a value of each looks like.

MLflow knows the types and passes every value on unchecked; here a value is checked before anything runs, and then passed
on exactly as it was given.
"""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from carrel.core.domain.errors import Invalid
from carrel.core.domain.suggest import suggest
from carrel.core.tasks.document import Value
from carrel.core.tasks.files import ProjectFiles

_WHOLE = re.compile(r"[+-]?[0-9]+")
_REAL = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE)
_TRUTHS = frozenset({"true", "false", "yes", "no", "on", "off", "1", "0"})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


#: What people write for a type; MLflow takes any word there, and passes the value on as it is.
SPELLINGS = {
    "str": "string", "text": "string",
    "integer": "int", "long": "int",
    "double": "float", "number": "float",
    "boolean": "bool",
}  # fmt: skip


class ParameterType(StrEnum):
    """Types of MLflow's parameters, and the two that everybody expects."""

    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    STRING = "string"
    PATH = "path"
    URI = "uri"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One declared parameter."""

    name: str
    type: ParameterType = ParameterType.STRING
    #: None: a value must be given.
    default: str | None = None


def read_parameter(name: str, value: Value) -> Parameter:
    """Read ``name: type`` or ``name: {type, default}``."""
    if not name or "\0" in name:
        raise value.wrong("a parameter needs a name.")
    if not value.is_mapping:
        return Parameter(name=name, type=_read_type(value))
    said = value.mapping({"type", "default"})
    kind = _read_type(said["type"]) if "type" in said else ParameterType.STRING
    parameter = Parameter(name=name, type=kind, default=said["default"].as_mlflow_reads_it() if "default" in said else None)
    if parameter.default is not None and kind not in (ParameterType.PATH, ParameterType.URI):
        fault = type_fault(kind, parameter.default)
        if fault:
            raise said["default"].wrong(f'the default of "{name}" is "{parameter.default}", which {fault}.')
    return parameter


def _read_type(value: Value) -> ParameterType:
    text = value.text()
    try:
        return ParameterType(SPELLINGS.get(text, text))
    except ValueError:
        names = [*ParameterType, *SPELLINGS]
        raise value.wrong(f'"{text}" is not a type of parameter.', suggest(text, names, what="Types")) from None


def type_fault(kind: ParameterType, value: str) -> str | None:
    """Return what is wrong with `value` as a `kind` ("is not a whole number"), or None. Places are not looked at."""
    if "\0" in value:
        return "has a zero byte"
    if kind is ParameterType.INT and not _WHOLE.fullmatch(value):
        return "is not a whole number"
    if kind is ParameterType.FLOAT and not _REAL.fullmatch(value):
        return "is not a number"
    if kind is ParameterType.BOOL and value.lower() not in _TRUTHS:
        return "is neither true nor false"
    return None


def is_uri(text: str) -> bool:
    """Tell whether `text` starts with a scheme (RFC 3986)."""
    return _SCHEME.match(text) is not None


def refuse_credentials(uri: str, what: str) -> None:
    """Raise `Invalid` when a URI has a password in it: it would be kept with the record and shown."""
    try:
        secret = urllib.parse.urlsplit(uri).password
    except ValueError:
        raise Invalid(f"{what}: the URI is malformed.", remedy="Write it like https://host/path or s3://bucket/key.") from None
    if secret is not None:
        raise Invalid(
            f"{what}: the URI has a password in it.", remedy="Leave it out; let the lab hold the credentials for the place."
        )


def staged_path(name: str, uri: str) -> str:
    """Return where a ``path`` parameter's URI is put: ``inputs/<name>/<last part of the URI>``."""
    if _UNSAFE.search(name) or name.startswith((".", "-")):
        raise Invalid(
            f'Parameter "{name}": a path parameter that takes a URI needs a plain name.', remedy="Use letters, digits, _ and -."
        )
    last = urllib.parse.unquote(urllib.parse.urlsplit(uri).path).rstrip("/").rpartition("/")[2]
    return f"inputs/{name}/{_UNSAFE.sub('_', last)[-200:].lstrip('.-') or 'data'}"


def checked(parameter: Parameter, value: str, files: ProjectFiles, promised: Collection[str]) -> str:
    """Return `value` when it fits the declared type; raise `Invalid` when not.

    A local place must be relative, inside the project, and exist, or be `promised` (staged as an input).
    """
    fault = type_fault(parameter.type, value)
    if fault:
        raise Invalid(f'Parameter "{parameter.name}" ({parameter.type}) is "{value}", which {fault}.', remedy=_example(parameter))
    if parameter.type in (ParameterType.PATH, ParameterType.URI):
        if is_uri(value):
            refuse_credentials(value, f'Parameter "{parameter.name}"')
        else:
            _check_place(parameter, value, files, promised)
    return value


def _check_place(parameter: Parameter, value: str, files: ProjectFiles, promised: Collection[str]) -> None:
    who = f'Parameter "{parameter.name}" ({parameter.type}) is "{value}"'
    if value.startswith(("/", "~")):
        raise Invalid(
            f"{who}, a place outside the project: it is not where the task runs.",
            remedy=f"Give a path relative to the project, or a URI (file://{value if value[0] == '/' else '/...'}).",
        )
    plain = posixpath.normpath(value) + "/"
    if value and any(plain.startswith(f"{place}/") or f"{place}/".startswith(plain) for place in promised):
        return
    if not value or files.kind(value) is None:
        raise Invalid(
            f"{who}, which is not in the project.",
            remedy="Give a path that is (and that .gitignore does not leave out), or a URI.",
        )


def _example(parameter: Parameter) -> str:
    examples = {ParameterType.INT: "5", ParameterType.FLOAT: "0.1 or 1e-3", ParameterType.BOOL: "true or false"}
    example = examples.get(parameter.type)
    return f"Write it like {example}." if example else ""
