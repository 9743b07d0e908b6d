"""The one place where errors become HTTP: RFC 9457 ``application/problem+json``, in one shape for every cause."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from carrel.core.domain.errors import (
    CarrelError,
    Conflict,
    Denied,
    Impossible,
    Invalid,
    Misdirected,
    NotFound,
    StorageFull,
    TooLarge,
    TooMany,
    Unauthenticated,
    Unavailable,
)
from carrel.core.domain.suggest import suggest
from carrel.node.environments import EnvironmentFailed
from carrel.wire.v1 import Problem

MEDIA_TYPE = "application/problem+json"
_URN = "urn:carrel:problem:"

#: Most special first: status, title, headers.
_TABLE: tuple[tuple[type[CarrelError], int, str, Mapping[str, str]], ...] = (
    (TooLarge, 413, "Too large", {}),
    (Impossible, 422, "This lab can never do that", {}),
    (Invalid, 422, "The request is not right", {}),
    (Unauthenticated, 401, "Not signed in", {"WWW-Authenticate": 'Bearer realm="carrel"'}),
    (Denied, 403, "Not allowed", {}),
    (NotFound, 404, "Not found", {}),
    (Conflict, 409, "Not possible in the present state", {}),
    (Misdirected, 421, "Not this lab", {}),
    (TooMany, 429, "Too many requests", {}),
    (StorageFull, 507, "No room left", {}),
    (Unavailable, 503, "Not possible right now", {"Retry-After": "2"}),
    (EnvironmentFailed, 422, "The environment could not be built", {}),
    (CarrelError, 500, "The lab failed", {}),
)

#: What the framework itself refuses: status -> code, title, fact, remedy.
_FRAMEWORK: Mapping[int, tuple[str, str, str, str]] = {
    400: ("invalid", "The request is not right", "The request cannot be read.", "Send well-formed HTTP with a JSON body."),
    404: ("not_found", "Not found", "There is nothing at this address.", "The addresses are listed at /docs."),
    405: ("method_not_allowed", "Method not allowed", "This address does not answer to this method.", "See /docs."),
    429: (
        "too_many",
        "Too many requests",
        "Your requests are too large for so many at once.",
        "Wait until some of them are answered, and send fewer at once.",
    ),
    413: ("too_large", "Too large", "The request is larger than this lab accepts.", "Send less, or ask an administrator."),
}


def problem_of(error: CarrelError) -> tuple[Problem, Mapping[str, str]]:
    """The problem that describes `error`, and the headers that go with it."""
    for cls, status, title, headers in _TABLE:
        if isinstance(error, cls):
            problem = Problem(
                type=_URN + error.code,
                title=title,
                status=status,
                detail=error.message,
                remedy=error.remedy,
                details=dict(error.details),
            )
            return problem, {"Retry-After": str(error.retry_after)} if isinstance(error, TooMany) else headers
    raise AssertionError(type(error))


def problem_of_framework(error: HTTPException) -> tuple[Problem, Mapping[str, str]]:
    """The problem for what routing or parsing refused."""
    code, title, fact, remedy = _FRAMEWORK.get(error.status_code, ("error", "Refused", str(error.detail), ""))
    fact = str(error.detail) if error.status_code == 413 else fact  # with the limit
    problem = Problem(type=_URN + code, title=title, status=error.status_code, detail=fact, remedy=remedy)
    return problem, error.headers or {}


def too_large(limit: int) -> TooLarge:
    """What is said of a body of more than `limit` bytes."""
    return TooLarge(
        f"The request is larger than the {limit} bytes that this lab accepts here.",
        remedy=_FRAMEWORK[413][3],
        details={"limit": limit},
    )


def problem_of_incident(incident: str) -> Problem:
    """The problem for a failure of the lab's own; `incident` finds it in the server's log."""
    return Problem(
        type=_URN + "internal",
        title="The lab failed",
        status=500,
        detail=f"Something failed inside the lab; incident {incident}.",
        remedy="Give the incident's number to an administrator: the server's log has the details under it.",
        details={"incident": incident},
    )


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """`problem` as it goes out."""
    return Response(problem.model_dump_json(), problem.status, dict(headers or {}), MEDIA_TYPE)


def invalid_request(error: RequestValidationError, body: type[BaseModel] | None) -> Invalid:
    """What pydantic found wrong, in our words: each field by its path, and the nearest valid name for an unknown one."""
    found = [_explain(item, body) for item in error.errors()]
    message, remedy = found[0][1], found[0][2]
    if len(found) > 1:
        message += f" ({len(found) - 1} more under details.)"
    listed = [{"field": field, "message": text, "remedy": hint} for field, text, hint in found]
    return Invalid(message, remedy=remedy, details={"errors": listed})


def _explain(item: Mapping[str, Any], body: type[BaseModel] | None) -> tuple[str, str, str]:
    place, *path = item["loc"]
    field = ".".join(str(part) for part in path)
    if item["type"] == "json_invalid":
        return "", f"The body is not JSON: {item.get('ctx', {}).get('error', item['msg'])}.", "Send a JSON object."
    if item["type"] == "extra_forbidden":
        valid = _valid_names(body, path[:-1])
        return field, f'The field "{field}" is unknown.', suggest(str(path[-1]), valid, what="Valid here") if valid else ""
    if item["type"] == "missing":
        if not path:
            return "", "The body is missing.", "Send a JSON object with Content-Type: application/json."
        return field, f'The field "{field}" is missing.', "Add it."
    where = {"body": "field", "query": "query parameter", "path": "path parameter", "header": "header"}.get(str(place), "field")
    given = item.get("input")
    shown = f" is {given!r}" if isinstance(given, (str, int, float, bool)) and len(str(given)) <= 100 else ""
    return field, f'The {where} "{field}"{shown}: {_lower_first(str(item["msg"]))}.', "Correct it and ask again."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _valid_names(model: type[BaseModel] | None, path: Sequence[Any]) -> list[str]:
    """Field names at `path` inside `model`, or none where the shape is not a model."""
    for part in path:
        if model is None or part not in model.model_fields:
            return []
        model = _model_in(model.model_fields[part].annotation)
    return [] if model is None else list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((model for option in typing.get_args(annotation) if (model := _model_in(option))), None)
    return None
