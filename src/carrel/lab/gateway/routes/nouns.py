"""The routes of nouns, and what the API's document says of them. A new noun is a line here, and one in `actions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Path, Response
from starlette.routing import BaseRoute

from carrel.core.domain.noun import Noun
from carrel.core.domain.nouns import ANNOUNCEMENTS, BLOCKS, COMPOSITIONS, RESERVATIONS, SECRETS
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


ROUTES = [
    *noun_routes(
        ANNOUNCEMENTS,
        "lab",
        list=("What all users are told now", "Administrators also see what they will be told later."),
        get=("One announcement", "404 for one that is over."),
        add=("Tell all users something (administrators)", "Plain text of at most 500 characters. Without `begin` it begins now."),
        delete=("Tell users something no longer (administrators)", "Pages show it until they are loaded again."),
    ),
    *noun_routes(
        BLOCKS,
        "machines",
        list=("Blocks of the fabric", "Where each is, whether it is well, and which composition has it."),
    ),
    *noun_routes(
        COMPOSITIONS,
        "machines",
        list=(
            "Machines from parts",
            "One's own, and everybody's for operators: those that are there, that wait, and that are over.",
        ),
        get=("One machine from parts", "With what is left to do, why it waits, and until when."),
        add=(
            "Make a machine from parts",
            "It waits until its blocks are free. With `preview` nothing is kept: the answer says what would be taken, and when.",
        ),
        delete=("Give the blocks of a machine back", "What runs on it goes on until it ends; nothing new starts there."),
    ),
    *noun_routes(
        RESERVATIONS,
        "lab",
        list=("Reservations of nodes, in force and to come", "Everybody may know when which nodes are not theirs, and what for."),
        put=(
            "Keep nodes for some people, or for nobody (operators)",
            "Jobs that run there go on; others do not start when their walltime would reach into it.",
        ),
        delete=("Release reserved nodes (operators)", "Jobs that waited for it are placed at once."),
    ),
    *noun_routes(
        SECRETS,
        "secrets",
        list=("Names of one's own secrets", "Without their values, which nobody is shown again."),
        delete=("Forget a secret of one's own", "Jobs that wait and name it will fail when they start, and say why."),
    ),
]
