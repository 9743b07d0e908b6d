"""The published OpenAPI document: what FastAPI finds in the routes, and what holds for all of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from carrel import __version__
from carrel.lab.gateway.errors import MEDIA_TYPE
from carrel.wire.v1 import Problem

_SCHEME = "access token"
_PROBLEMS = {
    "400": "The request cannot be read: no well-formed HTTP, or no JSON.",
    "401": "Nobody is signed in.",
    "403": "The caller may not do this.",
    "404": "It does not exist, or is not the caller's to see.",
    "409": "Not possible in the present state.",
    "413": "The request is too large.",
    "421": "The request is for a name that is not the lab's (`public_url`).",
    "422": "The request is not right, or this lab can never do it.",
    "429": "Too many requests; `Retry-After` says when to try again.",
    "503": "Not possible right now; `Retry-After` says when to try again.",
    "507": "A disk is full; nothing was changed.",
}
_ABOUT = (
    "A lab that shares its GPUs. Times are ISO 8601 in UTC, sizes are bytes, durations are seconds. Every error is an "
    "`application/problem+json` (RFC 9457) with the fact, its value and the remedy."
)


def document(app: FastAPI) -> dict[str, Any]:
    """The document of `app`, made once."""
    if app.openapi_schema is None:
        made = get_openapi(title="Carrel", version=__version__, description=_ABOUT, routes=app.routes)
        schemas = made["components"]["schemas"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        schemas["Problem"] = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        made["components"]["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
        for path, operations in made["paths"].items():
            for operation in operations.values():
                _complete(path, operation)
        app.openapi_schema = made
    return app.openapi_schema


def _complete(path: str, operation: dict[str, Any]) -> None:
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    operation["responses"].pop("422", None)
    if not path.startswith("/api/"):
        return
    operation["security"] = [{_SCHEME: []}]
    for status, description in _PROBLEMS.items():
        operation["responses"].setdefault(status, {"description": description, "content": content})
