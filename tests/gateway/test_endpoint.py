"""The lab's kind of route answers as FastAPI's own does, and every address of the API is one."""

from __future__ import annotations

import asyncio
import pathlib
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.routing import APIRoute
from gateway_lab import a_lab
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import WebSocketRoute

from carrel.lab.gateway.endpoint import Endpoint
from carrel.wire.v1 import API


class Fruit(BaseModel):
    number: int
    kind: str = Field(default="apple", alias="of kind")
    weight: float | None = None


class Rotten(Fruit):
    secret: str = "smell"


def plain(number: Annotated[int, Query(le=5)] = 1) -> Fruit:
    return Fruit(number=number)


def told(response: Response) -> Fruit:
    response.status_code = 202
    response.headers["Location"] = "/elsewhere"
    response.set_cookie("a", "b")
    return Fruit(number=1)


def partly_told(response: Response) -> Fruit:
    response.headers["X-Told"] = "yes"
    return Fruit(number=2)


def more_than_promised() -> Fruit:
    return Rotten(number=3)


def written() -> Response:
    return PlainTextResponse("as it is")


def no_model() -> dict[str, Any]:
    return {"number": 1}


async def on_the_loop() -> Fruit:
    return Fruit(number=4)


async def _agent(request: Request) -> str:
    return request.headers["user-agent"]


async def words(
    name: Annotated[str, Path(max_length=5)],
    request: Request,
    agent: Annotated[str, Depends(_agent)],
    number: Annotated[int | None, Query(ge=1)] = None,
    deep: Annotated[bool, Query()] = False,
) -> Response:
    return JSONResponse([name, request.method, agent, number, deep, (await request.body()).decode()])


async def broken(number: Annotated[int, Query()]) -> Response:
    raise HTTPException(409, f"not with {number}")


def _ask(route_class: type[APIRoute], method: str, path: str) -> httpx.Response:
    router = APIRouter(prefix="/fruit", route_class=route_class)
    for endpoint in (plain, told, partly_told, more_than_promised, written, no_model, on_the_loop, words, broken):
        router.add_api_route(f"/{endpoint.__name__}/{{name}}", endpoint, methods=["POST"], status_code=201)
    app = FastAPI()
    app.router.routes.extend(router.routes)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://lab") as client:
            return await client.request(method, path, content=b"said" if method == "POST" else None)

    return asyncio.run(ask())


@pytest.mark.gate
@pytest.mark.parametrize(
    "asked",
    [
        *("plain/a", "plain/a?number=5", "plain/a?number=6", "plain/a?number=x", "plain", "plain/a/b", "plai", "nothing/a"),
        *("told/a", "partly_told/a", "more_than_promised/a", "written/a", "no_model/a", "on_the_loop/a"),
        *(
            "words/a",
            "words/a%20b",
            "words/longer",
            "words/a?number=2&deep=yes",
            "words/a?number=0",
            "words/a?number=",
            "words/a?deep=x",
        ),
        *(
            "words/a?number=1&number=x",
            "words/a?number=x&number=1",
            "words/a?else=1",
            "broken/a?number=1",
            "broken/a",
            "broken/a?number",
        ),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_answers_are_those_of_fastapi(method: str, asked: str) -> None:
    ours, theirs = (_ask(route_class, method, f"/fruit/{asked}") for route_class in (Endpoint, APIRoute))
    assert (ours.status_code, ours.content) == (theirs.status_code, theirs.content)
    assert sorted(ours.headers.multi_items()) == sorted(theirs.headers.multi_items())


def test_the_document_is_that_of_fastapi() -> None:
    ours, theirs = (_ask(route_class, "GET", "/openapi.json").json() for route_class in (Endpoint, APIRoute))
    assert ours == theirs
    assert len(ours["paths"]) == 9


def test_every_address_of_the_api_is_one(tmp_path: pathlib.Path) -> None:
    with a_lab(tmp_path) as rig:
        routes = [route for route in rig.app.routes if getattr(route, "path", "").startswith(API)]
        assert len(routes) > 80
        assert [route for route in routes if not isinstance(route, (Endpoint, WebSocketRoute))] == []
