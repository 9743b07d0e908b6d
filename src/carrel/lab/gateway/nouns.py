"""The routes of any noun: list, get, add, put, delete. Who may is said in `carrel.lab.gateway.actions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Path, Response
from starlette.routing import BaseRoute

from carrel.core.domain.noun import Noun
from carrel.core.domain.user import Caller
from carrel.core.policy.access import allowed
from carrel.lab.gateway.actions import ENDPOINTS
from carrel.lab.gateway.context import LARGEST, NO_ZERO, Ctx, Who
from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API, asked_of, change_of, list_of, show, value_of

_OPTIONS: Mapping[str, dict[str, Any]] = {"add": {"status_code": 201}, "delete": {"status_code": 204, "response_class": Response}}


def noun_routes(noun: Noun[Any], tag: str, **about: tuple[str, str]) -> list[BaseRoute]:
    """The routes of `noun` that `about` has a summary and a description of: `list`, `get`, `add`, `put`, `delete`."""
    router = APIRouter(prefix=API, tags=[tag], route_class=Endpoint)
    many, one = f"/{noun.plural}", f"/{noun.plural}/{{{noun.key}}}"

    def list_all(ctx: Ctx, who: Who) -> Any:
        _check(who, "GET", many)
        return list_of(noun)(**{noun.plural: [show(value) for value in ctx.lab.keeper(noun).list(who)]})

    def get(key: Any, ctx: Ctx, who: Who) -> Any:
        _check(who, "GET", one)
        return ctx.lab.keeper(noun).get(who, key)

    def add(request: Any, ctx: Ctx, who: Who) -> Any:
        _check(who, "POST", many)
        return ctx.lab.keeper(noun).put(who, value_of(noun.type, request))[1]

    def put(key: Any, request: Any, ctx: Ctx, who: Who) -> Any:
        _check(who, "PUT", one)
        changed, value = ctx.lab.keeper(noun).put(who, value_of(noun.type, request, **{noun.key: key}))
        return change_of(noun)(changed=changed, **{noun.name: show(value)})

    def delete(key: Any, ctx: Ctx, who: Who) -> Response:
        _check(who, "DELETE", one)
        ctx.lab.keeper(noun).remove(who, key)
        return Response(status_code=204)

    routes: Mapping[str, tuple[str, str, Any, dict[str, Any]]] = {
        "list": ("GET", many, list_all, {"return": list_of(noun)}),
        "get": ("GET", one, get, {"key": _key(noun), "return": noun.type}),
        "add": ("POST", many, add, {"request": asked_of(noun), "return": noun.type}),
        "put": ("PUT", one, put, {"key": _key(noun), "request": asked_of(noun), "return": change_of(noun)}),
        "delete": ("DELETE", one, delete, {"key": _key(noun), "return": Response}),
    }
    for name, (summary, description) in about.items():
        method, path, endpoint, hints = routes[name]
        endpoint.__annotations__ |= hints
        said: dict[str, Any] = {
            "summary": summary,
            "description": description,
            "name": f"{name}_{noun.plural}",
            **_OPTIONS.get(name, {}),
        }
        router.add_api_route(path, endpoint, methods=[method], **said)
    return router.routes


def _check(who: Caller, method: str, path: str) -> None:
    allowed(who, ENDPOINTS[method, path]).check()


def _key(noun: Noun[Any]) -> Any:
    if get_type_hints(noun.type)[noun.key] is int:
        return Annotated[int, Path(ge=1, le=LARGEST, alias=noun.key)]
    return Annotated[str, Path(max_length=200, pattern=NO_ZERO, alias=noun.key)]
