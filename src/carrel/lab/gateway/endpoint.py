"""A route that does all its work in one change to a worker's thread, and is passed over quickly when it is not asked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from anyio import to_thread
from fastapi.datastructures import Default, DefaultPlaceholder
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from carrel.wire.v1 import show, shown_of


class Endpoint(APIRoute):
    """FastAPI's route with the same document and the same answers, which costs less.

    FastAPI runs a plain function in one thread, checks what it returned in another, and writes it on the loop of all requests.
    A model of the wire, or a noun of the lab's, needs no second check: here it is written as JSON where it was made.
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

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the request is for this route."""
        if not scope.get("root_path") and not scope["path"].startswith(self._stem):
            return Match.NONE, {}
        return super().matches(scope)


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
