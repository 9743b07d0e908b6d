"""What a user has open ends with a word of an administrator's, and their jobs' tokens with it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from gateway_lab import V1, Rig, client
from starlette.routing import Mount

from carrel.core.domain.job import JobState
from carrel.testing.waiting import PATIENCE, wait_until

#: How an administrator puts Ada out.
WAYS: dict[str, Callable[[httpx.Client, int], httpx.Response]] = {
    "suspend": lambda root, _token: root.post(f"{V1}/users/ada/suspend", json={}),
    "revoke": lambda root, _token: root.post(f"{V1}/users/ada/revoke"),
    "reset": lambda root, _token: root.post(f"{V1}/users/ada/reset", json={}),
    "remove": lambda root, _token: root.delete(f"{V1}/users/ada"),
    "one token": lambda root, token: root.delete(f"{V1}/tokens/{token}"),
}


class Endless:
    """Stands for MLflow, and for everything else that takes long: an answer without an end, a body that is waited for."""

    def __init__(self) -> None:
        self.reading, self.more = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"].endswith("/upload"):
            while (await receive()).get("more_body"):
                self.reading.set()
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while not self.more.is_set():
            await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": b"more"})


@pytest.fixture
def endless(rig: Rig) -> Endless:
    app = Endless()
    rig.app.router.routes.append(Mount("/mlflow", app))
    return app


def number_of(rig: Rig) -> int:
    number = rig.caller("ada").token_id
    assert number is not None
    return number


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_goes_on_is_broken_off(
    way: str, rig: Rig, endless: Endless, ada: httpx.Client, root: httpx.Client
) -> None:
    with ada.stream("GET", "/mlflow/download") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"begun"
        assert WAYS[way](root, number_of(rig)).is_success
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)
    assert ada.get("/mlflow/download").status_code in (401, 403)


def test_a_body_that_is_still_coming_is_not_waited_for(rig: Rig, url: str, endless: Endless, root: httpx.Client) -> None:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE) as stream:
        stream.sendall(
            f"POST /mlflow/upload HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {rig.tokens['ada']}\r\n"
            "Content-Length: 1000\r\n\r\nx".encode()
        )
        assert endless.reading.wait(PATIENCE)
        assert WAYS["suspend"](root, 0).is_success
        assert stream.recv(1000).startswith(b"HTTP/1.1 403 ")


def test_what_others_have_open_goes_on(
    rig: Rig, endless: Endless, bob: httpx.Client, ada: httpx.Client, root: httpx.Client
) -> None:
    with bob.stream("GET", "/mlflow/download") as his, ada.stream("GET", "/mlflow/download") as hers:
        his_pieces, her_pieces = his.iter_raw(), hers.iter_raw()
        assert (next(his_pieces), next(her_pieces)) == (b"begun", b"begun")
        WAYS["revoke"](root, 0)
        with pytest.raises(httpx.RemoteProtocolError):
            next(her_pieces)
        endless.more.set()
        assert next(his_pieces) == b"more"


def test_a_token_that_ends_by_itself_ends_what_is_open(endless: Endless, ada: httpx.Client, url: str) -> None:
    token = ada.post(f"{V1}/tokens", json={"expires_in": 1}).json()["token"]
    with client(url, {"Authorization": f"Bearer {token}"}) as short, short.stream("GET", "/mlflow/download") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"begun"
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)


@pytest.mark.parametrize("way", ["suspend", "revoke", "reset", "remove"])
def test_tokens_of_jobs_open_nothing_any_more(
    way: str, rig: Rig, endless: Endless, ada: httpx.Client, root: httpx.Client, nobody: httpx.Client
) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload()}).json()["id"]
    nobody.headers["Authorization"] = f"Bearer {rig.engine.wait_started(job)[1]}"
    rig.engine.run(job)
    rig.wait(job, JobState.RUNNING)
    with nobody.stream("GET", "/mlflow/download") as answer:
        pieces = answer.iter_raw()
        assert next(pieces) == b"begun"
        assert WAYS[way](root, 0).is_success
        with pytest.raises(httpx.RemoteProtocolError):
            next(pieces)
    for path in (f"/jobs/{job}", "/jobs", f"/jobs/{job}/log", f"/jobs/{job}/secrets"):
        assert nobody.get(f"{V1}{path}").status_code in (401, 403), path
    assert nobody.post("/mlflow/upload", content=b"x").status_code in (401, 403)
    assert root.post(f"{V1}/users/ada/resume").is_success
    # What was suspended goes on; what is void stays so, whatever else is good again.
    assert nobody.get(f"{V1}/jobs").status_code == (200 if way == "suspend" else 401)


def test_what_was_begun_with_tokens_that_are_void_gets_no_new_jobs(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    task = {"snapshot": rig.upload(), "parameters": {"who": "all"}}
    sweep = {"task": task, "parameters": {"times": "int(1, 9)"}, "metric": "x", "trials": 9, "parallel": 1}
    made = ada.post(f"{V1}/sweeps", json=sweep)
    assert made.status_code == 201, made.text
    first = wait_until(lambda: next(iter(ada.get(f"{V1}/jobs").json()["jobs"]), None))
    waits = ada.post(f"{V1}/jobs", json={"snapshot": task["snapshot"], "dependency": f"afterany:{first['id']}"}).json()["id"]
    new = WAYS["reset"](root, 0).json()["token"]
    ada.headers["Authorization"] = f"Bearer {new}"
    later = ada.post(f"{V1}/jobs", json={"snapshot": task["snapshot"]}).json()["id"]
    rig.engine.run(first["id"])
    rig.engine.end(first["id"])
    rig.wait_for(lambda: ada.get(f"{V1}/sweeps/{made.json()['id']}").json()["state"] != "RUNNING")
    assert {job["id"] for job in ada.get(f"{V1}/jobs").json()["jobs"]} == {first["id"], waits, later}
    tokens = {job: {"Authorization": f"Bearer {rig.engine.wait_started(job)[1]}"} for job in (waits, later)}
    assert root.get(f"{V1}/jobs", headers=tokens[waits]).status_code == 401
    assert root.get(f"{V1}/jobs", headers=tokens[later]).status_code == 200


def test_a_link_to_the_pages_is_for_people(rig: Rig, ada: httpx.Client, nobody: httpx.Client) -> None:
    assert ada.post(f"{V1}/tokens/current/link").status_code == 404  # this lab has none
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload()}).json()["id"]
    headers = {"Authorization": f"Bearer {rig.engine.wait_started(job)[1]}"}
    assert nobody.post(f"{V1}/tokens/current/link", headers=headers).status_code == 403
