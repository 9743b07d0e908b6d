from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from gateway_lab import V1, Rig, a_lab, client, serve
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import JobState
from carrel.lab.gateway import GatewaySettings, TrackingStatus, create_app
from carrel.lab.gateway.routes.issuer import PUBLIC
from carrel.lab.studies import OptunaStudy
from carrel.node.environments.named import NamedEnvironments

DIGEST = "sha256:" + "0" * 64


def every_route(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    """(method, path) of everything that the application answers, included routers too."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from every_route(inner.routes)
        elif isinstance(route, Mount):
            yield "GET", f"{route.path}/x"
        elif not isinstance(route, WebSocketRoute):  # GET of the same address is a route, too
            assert isinstance(route, (APIRoute, Route)), route
            for method in sorted(route.methods or ()):
                yield method, route.path


#: What a route wants to be told before it looks for its job.
BODIES = {
    ("PUT", "/api/v1/sessions/{job_id}/hub"): {"variables": {}},
    ("POST", "/api/v1/jobs/{job_id}/ssh"): {"public_key": "ssh-ed25519 nothing"},
    ("POST", "/api/v1/jobs/{job_id}/verification"): {"repetitions": [1]},
    ("POST", "/api/v1/jobs/{job_id}/matrix"): {},
    ("POST", "/api/v1/jobs/{job_id}/matrix/runs"): {},
}


def fill(path: str, job: int) -> str:
    known = {
        "job_id": str(job),
        "array_id": str(job),
        "digest": DIGEST,
        "subject:path": "ada",
        "path:file": "x",
        "name:path": "x",
        "name": "x",
        "token_id": "1",
        "pool_id": "1",
        "call_id": "1",
        "sweep_id": "1",
        "baseline_id": "777",
        "id": "777",
        "number": "1",
    }
    return re.sub(r"{([^}]+)}", lambda match: known[match[1]], path)


@pytest.mark.gate
def test_every_route_but_the_public_ones_wants_a_token(tmp_path: Path) -> None:
    # Without a limit of strangers: these are more requests than one address may send.
    with a_lab(tmp_path, stranger_rate=0) as rig, serve(rig.app) as url, client(url) as nobody:
        _wants_tokens(rig, nobody)


def _wants_tokens(rig: Rig, nobody: httpx.Client) -> None:
    routes = list(every_route(rig.app.routes))
    assert len(routes) >= 20
    public = {path for _, path in routes if not path.startswith("/api/")}
    assert public == {"/health", "/openapi.json"} | PUBLIC
    for method, path in routes:
        if path.startswith("/api/"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic cm9vdDpyb290"}):
                answer = nobody.request(method, fill(path, 1), headers=headers)
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                if method != "HEAD":
                    assert answer.json()["type"] == "urn:carrel:problem:unauthenticated"


def test_a_route_that_forgets_everything_is_closed_all_the_same(rig: Rig) -> None:
    rig.app.add_api_route("/api/v1/forgotten", lambda: "secret", methods=["GET"])
    rig.app.add_api_route("/forgotten", lambda: "secret", methods=["GET"])
    with serve(rig.app) as url, client(url) as http:
        assert http.get("/api/v1/forgotten").status_code == 401
        assert http.get("/forgotten").status_code == 401
        assert http.get("/api/nothing-here").status_code == 401
        assert http.get("/health").json() == {"status": "ok", "storage": []}


def test_the_jobs_of_others_do_not_exist_on_any_route(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> None:
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload(), "array": "0-1"}).json()["id"]
    routes = [(method, path) for method, path in every_route(rig.app.routes) if "{job_id}" in path or "{array_id}" in path]
    assert len(routes) >= 9
    for method, path in routes:
        body = BODIES.get((method, path))
        for accept in ("*/*", "text/event-stream"):
            theirs = bob.request(method, fill(path, job), headers={"Accept": accept}, json=body)
            missing = bob.request(method, fill(path, job + 1000), headers={"Accept": accept}, json=body)
            assert (theirs.status_code, missing.status_code) == (404, 404), (method, path)
            assert theirs.text.replace(str(job), "N") == missing.text.replace(str(job + 1000), "N")
    assert rig.store.jobs.get(job).cancelled_by is None  # type: ignore[union-attr]


def test_a_job_may_look_and_submit_further_steps_and_nothing_else(rig: Rig, ada: httpx.Client, nobody: httpx.Client) -> None:
    digest = rig.upload()
    job = ada.post(f"{V1}/jobs", json={"snapshot": digest}).json()["id"]
    other = ada.post(f"{V1}/jobs", json={"snapshot": digest}).json()["id"]
    token = rig.engine.wait_started(job)[1]
    rig.engine.wait_started(other)
    nobody.headers["Authorization"] = f"Bearer {token}"
    assert nobody.get(f"{V1}/jobs/{job}").status_code == 200
    assert nobody.get(f"{V1}/lab").json()["caller"]["subject"] == "ada"
    step = nobody.post(f"{V1}/jobs", json={"snapshot": digest})
    assert step.status_code == 201
    code, archive = rig.archive({"step.py": "print(2)\n"})
    assert nobody.put(f"{V1}/snapshots/{code}", content=archive).status_code == 201
    for method, path in (
        ("POST", f"{V1}/jobs/{other}/cancel"),
        ("POST", f"{V1}/jobs/{job}/rerun"),
        ("GET", f"{V1}/users"),
        ("POST", f"{V1}/users"),
        ("POST", f"{V1}/users/ada/revoke"),
    ):
        answer = nobody.request(method, path)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:carrel:problem:denied"), (method, path)
    rig.engine.end(job)
    rig.wait(job, JobState.COMPLETED)
    assert nobody.get(f"{V1}/jobs/{job}").status_code == 401


@pytest.mark.parametrize(
    "token", ["²", "carrel-job.².1.x", "x" * 600, "carrel-job." + "9" * 5000 + ".1.x", "carrel-job.1.1.\xff"]
)
def test_strange_tokens_are_not_valid_and_not_an_accident(nobody: httpx.Client, token: str) -> None:
    answer = nobody.get(f"{V1}/lab", headers=[(b"authorization", b"Bearer " + token.encode("latin-1", "replace"))])
    assert answer.status_code == 401


def test_every_error_has_the_same_shape(rig: Rig, ada: httpx.Client, nobody: httpx.Client) -> None:
    found = {
        "not_found": ada.get(f"{V1}/nothing"),
        "method_not_allowed": ada.delete(f"{V1}/jobs/1"),
        "invalid": ada.post(f"{V1}/jobs", content=b"{not json", headers={"Content-Type": "application/json"}),
        "unauthenticated": nobody.get(f"{V1}/lab"),
    }
    for code, answer in found.items():
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(problem) == {"type", "title", "status", "detail", "remedy", "details"}
        assert (problem["type"], problem["status"]) == (f"urn:carrel:problem:{code}", answer.status_code)
        assert problem["detail"]
    assert found["invalid"].json()["detail"].startswith("The body is not JSON")
    several = ada.post(f"{V1}/jobs", json={"resources": {"cpu": 1, "gpuz": 1}}).json()
    fields = [item["field"] for item in several["details"]["errors"]]
    assert sorted(fields) == ["resources.cpu", "resources.gpuz", "snapshot"]
    missing = ada.post(f"{V1}/jobs").json()
    assert missing["detail"] == "The body is missing."
    lone = ada.post(f"{V1}/jobs", content=b'{"snapshot": "\\ud800"}', headers={"Content-Type": "application/json"})
    assert (lone.status_code, "half a character" in lone.json()["detail"]) == (422, True)
    assert ada.get(f"{V1}/jobs", params={"name": "a\0b"}).status_code == 422
    assert ada.get(f"{V1}/jobs/99999999999999999999").status_code == 422
    assert ada.get(f"{V1}/jobs/abc").json()["detail"].startswith("The path parameter \"job_id\" is 'abc'")


def test_a_failure_of_our_own_has_a_number_and_shows_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("the password is swordfish")

    def refuse() -> None:
        raise Invalid("It is wrong.")

    rig.app.add_api_route("/api/v1/fail", fail, methods=["GET"])
    rig.app.add_api_route("/api/v1/refuse", refuse, methods=["GET"])
    with caplog.at_level(logging.ERROR), serve(rig.app) as url, client(url, rig.headers()) as http:
        answer = http.get("/api/v1/fail?ticket=sesame")
        assert answer.status_code == 500
        problem = answer.json()
        assert problem["type"] == "urn:carrel:problem:internal"
        assert "swordfish" not in answer.text
        assert "Traceback" not in answer.text
        assert http.get("/api/v1/refuse").status_code == 422
    incident = problem["details"]["incident"]
    assert incident in problem["detail"]
    logged = [record for record in caplog.records if incident in record.getMessage()]
    assert logged
    assert "swordfish" in str(logged[0].exc_info)
    assert "sesame" not in caplog.text
    assert not any(token in caplog.text for token in rig.tokens.values())


def test_answers_carry_security_headers_and_no_cors(ada: httpx.Client, nobody: httpx.Client) -> None:
    for answer in (
        ada.get(f"{V1}/lab", headers={"Origin": "https://evil.example"}),
        nobody.get(f"{V1}/lab"),
        nobody.get("/health"),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not any(name.startswith("access-control-") for name in answer.headers)
    assert ada.options(f"{V1}/jobs", headers={"Origin": "https://evil.example"}).status_code == 405


def test_no_token_is_ever_printed(rig: Rig) -> None:
    from carrel.lab.gateway.gate import Grant

    caller = rig.caller("ada")
    assert rig.tokens["ada"] not in repr(Grant(caller=caller, recheck=lambda: caller))


def test_the_tracking_server_is_behind_the_same_gate(rig: Rig, ada: httpx.Client) -> None:
    async def tracking(scope: Scope, receive: Receive, send: Send) -> None:
        text = f"{scope['state']['grant'].caller.user.subject} {scope['path']}"
        await PlainTextResponse(text)(scope, receive, send)

    app = create_app(
        rig.lab,
        settings=GatewaySettings(uploads=rig.home / "uploads", calls=rig.home / "calls", max_body=10),
        snapshots=rig.snapshots,
        environments=NamedEnvironments(rig.home / "environments"),
        calls=rig.store.calls,
        sweeps=(rig.store.sweeps, OptunaStudy()),
        baseline_store=rig.store.baselines,
        challenges=(rig.store, rig.home / "challenges", rig.home / "files"),
        tracking_proxy=tracking,
        tracking_status=lambda: TrackingStatus(state="starting", message="MLflow is starting."),
    )
    job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload()}).json()["id"]
    token = rig.engine.wait_started(job)[1]
    with serve(app) as url, client(url) as http:
        assert http.get("/mlflow/api").status_code == 401
        assert http.get("/mlflow").status_code == 401
        assert http.get("/mlflow/api", headers=rig.headers()).text == "ada /mlflow/api"
        assert http.get("/mlflow/api", auth=("ignored", rig.tokens["bob"])).text == "bob /mlflow/api"
        assert http.get(f"{V1}/lab", auth=("ignored", rig.tokens["bob"])).status_code == 401
        mine = {"Authorization": f"Bearer {token}"}
        assert http.post("/mlflow/api", headers=mine, content=b"longer than ten bytes").text == "ada /mlflow/api"
        assert http.get("/mlflow", headers=mine).headers["location"] == "/mlflow/"
        lab = http.get(f"{V1}/lab", headers=rig.headers()).json()
        assert (lab["tracking"], lab["tracking_message"]) == ("starting", "MLflow is starting.")
        assert lab["tracking_url"] == f"{url}/mlflow"
