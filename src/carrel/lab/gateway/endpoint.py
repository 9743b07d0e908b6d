"""A route that does all its work in one change to a worker's thread, and is passed over quickly when it is not asked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, TypeAlias, get_args, get_type_hints

from anyio import to_thread
from fastapi import params
from fastapi.datastructures import Default, DefaultPlaceholder
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from carrel.wire.v1 import show, shown_of

#: Gives an argument of an endpoint. Raises `ValidationError` for what it should not be.
Reader: TypeAlias = Callable[[Request], Awaitable[Any]]


class Endpoint(APIRoute):
    """FastAPI's route with the same document and the same answers, which costs less.

    FastAPI runs a plain function in one thread, checks what it returned in another, and writes it on the loop of all requests.
    A model of the wire, or a noun of the lab's, needs no second check: here it is written as JSON where it was made.
    A coroutine that takes words of the address alone, and returns a response, is called without FastAPI: 0.4 ms for each request.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """As FastAPI calls it."""
        if isinstance(options.get("response_model", Default(None)), DefaultPlaceholder):
            returned: Any = get_type_hints(endpoint).get("return")
            if is_dataclass(returned):
                options["response_model"] = shown_of(returned)
            endpoint = _answering(endpoint, options.get("status_code") or 200)
        super().__init__(path, endpoint, **options)
        #: What every path of this route begins with.
        self._stem = path.partition("{")[0]
        self._readers = _readers(endpoint)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the request is for this route."""
        if not scope.get("root_path") and not scope["path"].startswith(self._stem):
            return Match.NONE, {}
        return super().matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. FastAPI answers those that are not right."""
        if self._readers is not None and scope["method"] in (self.methods or ()):
            request = Request(scope, receive, send)
            try:
                arguments = {name: await read(request) for name, read in self._readers.items()}
            except ValidationError:
                pass
            else:
                answer: Response = await self.endpoint(**arguments)
                await answer(scope, receive, send)
                return
        await super().handle(scope, receive, send)


def _readers(endpoint: Callable[..., Any]) -> Mapping[str, Reader] | None:
    """Readers of each argument of a coroutine that returns a response; None where FastAPI has to."""
    hints = get_type_hints(endpoint, include_extras=True)
    returned = hints.pop("return", None)
    if not (inspect.iscoroutinefunction(endpoint) and isinstance(returned, type) and issubclass(returned, Response)):
        return None
    found = {name: _reader(one, hints[name]) for name, one in inspect.signature(endpoint).parameters.items()}
    known = {name: one for name, one in found.items() if one is not None}
    return known if len(known) == len(found) else None


def _reader(parameter: inspect.Parameter, hint: Any) -> Reader | None:
    about = next((one for one in get_args(hint) if isinstance(one, params.Param | params.Depends)), None)
    if isinstance(about, params.Depends):
        if about.dependency is None or not inspect.iscoroutinefunction(about.dependency):
            return None
        needs = get_type_hints(about.dependency)
        needs.pop("return", None)
        return about.dependency if list(needs.values()) == [Request] else None

    async def request_itself(request: Request) -> Request:
        return request

    if hint is Request:
        return request_itself
    kinds = get_args(get_args(hint)[0]) or get_args(hint)[:1]
    is_plain = isinstance(about, params.Path | params.Query) and about.alias in (None, parameter.name)
    if not is_plain or not {*kinds} <= {int, float, bool, str, NoneType}:
        return None
    adapter, default, in_path = TypeAdapter(hint), parameter.default, isinstance(about, params.Path)

    async def word(request: Request) -> Any:
        found = (request.path_params if in_path else request.query_params).get(parameter.name)
        return default if found is None and default is not parameter.empty else adapter.validate_python(found)

    return word


def _answering(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    """`endpoint`, which answers with bytes, if it is a plain function that returns a model; else as it is."""
    hints = get_type_hints(endpoint)
    noun: Any = hints.get("return")
    model = shown_of(noun) if is_dataclass(noun) else noun
    if inspect.iscoroutinefunction(endpoint) or not (isinstance(model, type) and issubclass(model, BaseModel)):
        return endpoint
    #: Where the function says its status and headers, if it does.
    told = next((name for name, kind in hints.items() if kind is Response), None)

    def answer(**arguments: Any) -> Any:
        found = endpoint(**arguments)
        if type(found) is noun is not model:
            found = show(found)
        if type(found) is not model:
            return found
        content = model.__pydantic_serializer__.to_json(found, by_alias=True)
        if told is None:
            return Response(content, status, media_type="application/json")
        said: Response = arguments[told]
        made = Response(content, said.status_code or status, media_type="application/json")
        made.raw_headers.extend(said.raw_headers)
        return made

    @functools.wraps(endpoint)
    async def answered(**arguments: Any) -> Any:
        return await to_thread.run_sync(functools.partial(answer, **arguments))

    return answered
