"""Users of one MLflow, through the real proxy and the real server: each sees and touches only their own."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tracking_support import Tracking

from carrel.lab.tracking.tenancy import workspace_of
from carrel.testing.waiting import wait_until

pytestmark = pytest.mark.mlflow
API = "/api/2.0/mlflow"
SECRET = "alices-secret"


@dataclass(frozen=True)
class Hers:
    """Something of everything, of Alice's."""

    experiment: str
    run: str
    model: str
    registered: str
    workspace: str
    trace: str = "tr-1"

    @property
    def artifacts(self) -> str:
        return f"{self.experiment}/{self.run}/artifacts"


@pytest.fixture(scope="module")
def alice(tracking: Tracking) -> Iterator[httpx.Client]:
    with tracking.client("alice-token") as client:
        yield client


@pytest.fixture(scope="module")
def bob(tracking: Tracking) -> Iterator[httpx.Client]:
    with tracking.client("bob-token") as client:
        yield client


def post(client: httpx.Client, path: str, **body: object) -> httpx.Response:
    return client.post(path, json=body)


@pytest.fixture(scope="module")
def hers(alice: httpx.Client) -> Hers:
    experiment = post(alice, f"{API}/experiments/create", name="hers").raise_for_status().json()["experiment_id"]
    run = (
        post(alice, f"{API}/runs/create", experiment_id=experiment, run_name=SECRET)
        .raise_for_status()
        .json()["run"]["info"]["run_id"]
    )
    post(alice, f"{API}/runs/log-metric", run_id=run, key="loss", value=0.125, timestamp=1, step=1).raise_for_status()
    post(alice, f"{API}/runs/set-tag", run_id=run, key="note", value=SECRET).raise_for_status()
    model = post(alice, f"{API}/logged-models", experiment_id=experiment, name=SECRET, source_run_id=run).raise_for_status()
    post(alice, f"{API}/registered-models/create", name="net").raise_for_status()
    source = f"mlflow-artifacts:/workspaces/{workspace_of('alice')}/{experiment}/{run}/artifacts"
    post(alice, f"{API}/model-versions/create", name="net", source=source, run_id=run).raise_for_status()
    made = Hers(
        experiment=experiment,
        run=run,
        model=model.json()["model"]["info"]["model_id"],
        registered="net",
        workspace=workspace_of("alice"),
    )
    alice.put(f"/api/2.0/mlflow-artifacts/artifacts/{made.artifacts}/deep/secret.txt", content=SECRET.encode()).raise_for_status()
    return made


def everything_of(client: httpx.Client, hers: Hers) -> str:
    """What changes when somebody has touched Alice's things."""
    run = client.get(f"{API}/runs/get", params={"run_id": hers.run}).raise_for_status().json()
    experiment = client.get(f"{API}/experiments/get", params={"experiment_id": hers.experiment}).raise_for_status().json()
    model = client.get(f"{API}/logged-models/{hers.model}").raise_for_status().json()
    files = client.get(f"{API}/artifacts/list", params={"run_id": hers.run, "path": "deep"}).raise_for_status().json()
    versions = client.get(f"{API}/registered-models/get", params={"name": hers.registered}).raise_for_status().json()
    return json.dumps([run, experiment, model, files, versions], sort_keys=True)


def reads(hers: Hers) -> list[tuple[str, str, dict[str, object] | None]]:
    run, experiment, model = hers.run, hers.experiment, hers.model
    escape = f"{hers.workspace}/{hers.artifacts}/deep/secret.txt"
    content = "/api/2.0/mlflow-artifacts/artifacts"
    one = "query Q($id: String!) { mlflowGetRun(input: {runId: $id}) { run { info { runName } data { tags { value } } } } }"
    many = "query Q($ids: [String]!) { mlflowSearchRuns(input: {experimentIds: $ids}) { runs { info { runName } } } }"
    files = "query Q($id: String!) { mlflowListArtifacts(input: {runId: $id}) { files { path } } }"
    return [
        ("GET", f"{API}/runs/get?run_id={run}", None),
        ("GET", f"/ajax-api/2.0/mlflow/runs/get?run_id={run}", None),
        ("POST", f"{API}/runs/search", {"experiment_ids": [experiment]}),
        ("POST", f"{API}/runs/search", {"experiment_ids": [experiment, "0"], "filter": f"tags.note = '{SECRET}'"}),
        ("POST", f"{API}/experiments/search", {"max_results": 1000}),
        ("GET", f"{API}/experiments/get?experiment_id={experiment}", None),
        ("GET", f"{API}/experiments/get-by-name?experiment_name=hers", None),
        ("GET", f"{API}/metrics/get-history?run_id={run}&metric_key=loss", None),
        ("GET", f"/ajax-api/2.0/mlflow/metrics/get-history-bulk?run_id={run}&metric_key=loss", None),
        ("GET", f"/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval?run_ids={run}&metric_key=loss", None),
        ("GET", f"{API}/artifacts/list?run_id={run}", None),
        ("GET", f"/get-artifact?run_id={run}&path=deep/secret.txt", None),
        ("GET", f"/get-artifact?run_uuid={run}&path=deep%2Fsecret.txt", None),
        ("GET", "/model-versions/get-artifact?name=net&version=1&path=deep/secret.txt", None),
        ("GET", f"{API}/model-versions/get?name=net&version=1", None),
        ("GET", f"{API}/model-versions/search", None),
        ("GET", f"{API}/registered-models/search", None),
        ("GET", f"{API}/registered-models/get?name=net", None),
        ("GET", f"{API}/logged-models/{model}", None),
        ("POST", f"{API}/logged-models/search", {"experiment_ids": [experiment]}),
        ("GET", f"{API}/logged-models/{model}/artifacts/directories", None),
        ("GET", f"/ajax-api/2.0/mlflow/logged-models/{model}/artifacts/files?artifact_file_path=x", None),
        ("POST", "/graphql", {"query": one, "variables": {"id": run}}),
        ("POST", "/graphql", {"query": many, "variables": {"ids": [experiment]}}),
        ("POST", "/graphql", {"query": files, "variables": {"id": run}}),
        ("GET", f"{content}?path={hers.artifacts}", None),
        ("GET", f"{content}?path=workspaces/{hers.workspace}/{hers.artifacts}/deep", None),
        ("GET", f"{content}?path=../{hers.workspace}/{hers.artifacts}/deep", None),
        ("GET", f"{content}?path=..%252F{hers.workspace}", None),
        ("GET", f"{content}/{hers.artifacts}/deep/secret.txt", None),
        ("GET", f"{content}/workspaces/{escape}", None),
        ("GET", f"/ajax-api/2.0/mlflow-artifacts/artifacts/workspaces/{escape}", None),
        ("GET", f"{content}/workspaces%2F{escape}", None),
        ("GET", f"{content}/x/../../{escape}", None),
        ("GET", f"{content}/x/%2e%2e/%2e%2e/{escape}", None),
        ("GET", f"{content}/..%2f{escape}", None),
        ("GET", f"{content}/..%252f{escape}", None),
        ("GET", f"{content}/%252e%252e/{escape}", None),
        ("GET", f"{content}/..%5c{escape}", None),
        ("GET", f"{content}//workspaces/{escape}", None),
        ("GET", f"{content}/./workspaces/{escape}", None),
        ("GET", f"{content}/file:///etc/passwd", None),
        ("GET", "/api/3.0/mlflow/workspaces", None),
        ("GET", f"/api/3.0/mlflow/workspaces/{hers.workspace}", None),
    ]


@pytest.mark.gate
def test_nobody_reads_what_is_not_theirs(bob: httpx.Client, alice: httpx.Client, hers: Hers) -> None:
    marks = (SECRET, hers.run, hers.workspace, "0.125", "secret.txt", "root:")
    for method, path, body in reads(hers):
        # Sent as written: httpx would tidy the path up, a stranger would not.
        request = bob.build_request(method, "/", json=body)
        request.url = request.url.copy_with(raw_path=b"/mlflow" + path.encode())
        for header in ({}, {"X-MLFLOW-WORKSPACE": hers.workspace}, {"X-MLFLOW-WORKSPACE": "alice"}):
            request.headers.update(header)
            answer = bob.send(request)
            assert answer.status_code < 500, (method, path, answer.text)
            asked = path + json.dumps(body)  # an answer may repeat what was asked
            assert not [mark for mark in marks if mark in answer.text and mark not in asked], (method, path, answer.text)
        if ".." not in path and "%2" not in path:
            mine = alice.request(method, path, json=body)
            assert mine.status_code < 500, (path, mine.text)


def test_alices_own_eyes_find_all_of_it(alice: httpx.Client, hers: Hers) -> None:
    # Without this, a typing error in a path above would pass as isolation.
    found = 0
    for method, path, body in reads(hers):
        request = alice.build_request(method, "/", json=body)
        request.url = request.url.copy_with(raw_path=b"/mlflow" + path.encode())
        answer = alice.send(request)
        found += any(mark in answer.text for mark in (SECRET, hers.run, "0.125", "secret.txt")) and answer.is_success
    assert found >= 24


def writes(hers: Hers, mine: str) -> list[tuple[str, str, dict[str, object] | None]]:
    run, experiment, model = hers.run, hers.experiment, hers.model
    escape = f"{hers.workspace}/{hers.artifacts}/deep/secret.txt"
    content = "/api/2.0/mlflow-artifacts/artifacts"
    metric = {"key": "loss", "value": 9.0, "timestamp": 2, "step": 2}
    return [
        ("POST", f"{API}/runs/log-metric", {"run_id": run, **metric}),
        ("POST", f"{API}/runs/log-metric", {"runId": run, **metric}),
        ("POST", f"{API}/runs/log-metric", {"run_uuid": run, **metric}),
        ("POST", f"{API}/runs/log-metric", {"run_id": mine, **metric, "model_id": model}),
        ("POST", f"{API}/runs/log-batch", {"run_id": mine, "metrics": [{**metric, "modelId": model}]}),
        ("POST", f"{API}/runs/log-batch", {"run_id": run, "metrics": [metric]}),
        ("POST", f"{API}/runs/log-parameter", {"run_id": run, "key": "p", "value": "1"}),
        ("POST", f"{API}/runs/set-tag", {"run_id": run, "key": "note", "value": "bob was here"}),
        ("POST", f"{API}/runs/delete-tag", {"run_id": run, "key": "note"}),
        ("POST", f"{API}/runs/update", {"run_id": run, "status": "FAILED", "end_time": 3}),
        ("POST", f"{API}/runs/delete", {"run_id": run}),
        ("POST", f"{API}/runs/create", {"experiment_id": experiment}),
        ("POST", f"{API}/runs/log-inputs", {"run_id": run, "models": [{"model_id": model}]}),
        ("POST", f"{API}/runs/outputs", {"run_id": run, "models": [{"model_id": model, "step": 0}]}),
        ("POST", f"{API}/runs/log-model", {"run_id": run, "model_json": "{}"}),
        ("POST", f"{API}/experiments/update", {"experiment_id": experiment, "new_name": "bobs"}),
        ("POST", f"{API}/experiments/delete", {"experiment_id": experiment}),
        ("POST", f"{API}/experiments/set-experiment-tag", {"experiment_id": experiment, "key": "a", "value": "b"}),
        (
            "POST",
            f"{API}/experiments/create",
            {"name": "e", "artifact_location": f"mlflow-artifacts:/workspaces/{hers.workspace}"},
        ),
        ("POST", f"{API}/logged-models", {"experiment_id": experiment, "name": "x"}),
        ("PATCH", f"{API}/logged-models/{model}", {"model_id": model, "status": 3}),
        ("DELETE", f"{API}/logged-models/{model}", None),
        ("PATCH", f"{API}/logged-models/{model}/tags", {"tags": [{"key": "a", "value": "b"}]}),
        ("POST", f"{API}/logged-models/{model}/params", {"params": [{"key": "a", "value": "b"}]}),
        ("POST", f"{API}/model-versions/set-tag", {"name": "net", "version": "1", "key": "a", "value": "b"}),
        ("DELETE", f"{API}/registered-models/delete", {"name": "net"}),
        ("POST", f"{API}/registered-models/alias", {"name": "net", "alias": "a", "version": "1"}),
        ("PUT", f"{content}/workspaces/{escape}", None),
        ("PUT", f"{content}/x/%2e%2e/%2e%2e/{escape}", None),
        ("PUT", f"{content}/..%252f{escape}", None),
        ("DELETE", f"{content}/workspaces/{escape}", None),
        ("DELETE", f"{content}/..%252f{hers.workspace}", None),
        ("DELETE", f"{content}/workspaces/{hers.workspace}", None),
        ("POST", f"/ajax-api/2.0/mlflow/upload-artifact?run_uuid={run}&path=deep/secret.txt", {"x": 1}),
        ("DELETE", f"/api/3.0/mlflow/workspaces/{hers.workspace}?mode=CASCADE", None),
        ("POST", "/api/3.0/mlflow/traces/delete-traces", {"experiment_id": experiment, "max_timestamp_millis": 10**15}),
    ]


def test_nobody_touches_what_is_not_theirs(bob: httpx.Client, alice: httpx.Client, hers: Hers) -> None:
    mine = post(bob, f"{API}/runs/create", experiment_id="0").raise_for_status().json()["run"]["info"]["run_id"]
    before = everything_of(alice, hers)
    for method, path, body in writes(hers, mine):
        request = bob.build_request(method, "/", json=body, headers={"X-MLFLOW-WORKSPACE": hers.workspace})
        request.url = request.url.copy_with(raw_path=b"/mlflow" + path.encode())
        answer = bob.send(request)
        assert 400 <= answer.status_code < 500, (method, path, answer.status_code, answer.text)
        assert everything_of(alice, hers) == before, (method, path)
    assert alice.get(f"/get-artifact?run_id={hers.run}&path=deep/secret.txt").text == SECRET


def test_writes_that_mlflow_takes_land_with_the_writer(bob: httpx.Client, alice: httpx.Client, hers: Hers) -> None:
    # A relative path is taken as one of the writer's own workspace, whatever it looks like.
    before = everything_of(alice, hers)
    post(bob, f"{API}/runs/create", experiment_id="0").raise_for_status()  # whoever has artifacts has a run
    path = f"/api/2.0/mlflow-artifacts/artifacts/{hers.artifacts}/deep/secret.txt"
    assert bob.put(path, content=b"bob").is_success
    assert bob.get(path).text == "bob"
    assert alice.get(path).text == SECRET
    assert bob.delete(path).is_success
    assert everything_of(alice, hers) == before


@pytest.mark.parametrize("source", ["http://localhost/x", "s3://bucket/x", "file:///etc", "/etc", "ftp://localhost/x"])
def test_a_model_version_points_nowhere_but_into_the_lab(bob: httpx.Client, source: str) -> None:
    post(bob, f"{API}/registered-models/create", name="elsewhere")
    answer = post(bob, f"{API}/model-versions/create", name="elsewhere", source=source)
    assert answer.status_code == 400
    assert "Invalid model version source" in answer.json()["message"]


def test_a_model_version_cannot_point_into_anothers_artifacts(bob: httpx.Client, hers: Hers) -> None:
    post(bob, f"{API}/registered-models/create", name="elsewhere")
    mine = post(bob, f"{API}/runs/create", experiment_id="0").json()["run"]["info"]["run_id"]
    source = f"mlflow-artifacts:/workspaces/{hers.workspace}/{hers.artifacts}"
    for ids in ({}, {"run_id": mine}, {"run_id": hers.run}, {"model_id": hers.model}):
        assert post(bob, f"{API}/model-versions/create", name="elsewhere", source=source, **ids).status_code == 400


def test_an_administrator_in_person_may_look_at_anybodys(tracking: Tracking, hers: Hers) -> None:
    asked = {"X-MLFLOW-WORKSPACE": "alice"}
    with tracking.client("root-token") as root, tracking.client("root-job-token") as job:
        assert root.get(f"{API}/runs/get?run_id={hers.run}", headers=asked).is_success
        assert root.get(f"{API}/runs/get?run_id={hers.run}").status_code == 404
        assert job.get(f"{API}/runs/get?run_id={hers.run}", headers=asked).status_code == 404


def test_a_jobs_token_works_as_its_owners(tracking: Tracking, hers: Hers) -> None:
    with tracking.client("alice-job-token") as job:
        assert job.get(f"{API}/runs/get?run_id={hers.run}").is_success


def test_without_a_good_token_nothing_is_told(tracking: Tracking) -> None:
    for headers in ({}, {"Authorization": "Bearer nobody"}, {"Authorization": "Basic !!"}, {"Authorization": "Digest x"}):
        for path in ("/", f"{API}/experiments/search", "/api/3.0/mlflow/server-info", "/static-files/index.html"):
            answer = httpx.get(tracking.url + path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["error_code"] == "UNAUTHENTICATED"


def test_the_token_may_come_as_a_password(tracking: Tracking) -> None:
    basic = base64.b64encode(b"anything:alice-token").decode()
    wait_until(lambda: httpx.get(f"{tracking.url}/version", headers={"Authorization": f"Basic {basic}"}).is_success, "an answer")


def test_what_is_not_offered_says_so(alice: httpx.Client) -> None:
    answer = alice.get("/api/3.0/mlflow/gateway/secrets/list")
    assert answer.status_code == 404
    assert "does not offer" in answer.json()["message"]


def test_the_pages_are_served(tracking: Tracking, alice: httpx.Client) -> None:
    page = alice.get("/")
    assert page.is_success
    assert '<div id="root"' in page.text
    script = page.text.split('src="')[1].split('"')[0]
    assert alice.get("/" + script.lstrip("./")).is_success
    info = alice.get("/ajax-api/3.0/mlflow/server-info").json()
    assert info["workspaces_enabled"] is False


def test_a_stored_page_is_not_run_by_a_browser(alice: httpx.Client, hers: Hers) -> None:
    path = f"/api/2.0/mlflow-artifacts/artifacts/{hers.artifacts}/page.html"
    alice.put(path, content=b"<script>alert(1)</script>").raise_for_status()
    for where in (path, f"/get-artifact?run_id={hers.run}&path=page.html"):
        answer = alice.get(where)
        assert "sandbox" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_large_artifact_streams_both_ways(alice: httpx.Client, hers: Hers, tracking: Tracking) -> None:
    block, blocks = os.urandom(1024**2), 64
    path = f"/api/2.0/mlflow-artifacts/artifacts/{hers.artifacts}/large.bin"
    alice.put(path, content=(block for _ in range(blocks))).raise_for_status()  # chunked: no length announced
    with alice.stream("GET", path) as answer:
        assert answer.headers["content-length"] == str(blocks * len(block))
        size = sum(len(part) for part in answer.iter_bytes())
    assert size == blocks * len(block)
    part = alice.get(path, headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, block[5:10])


CLIENT = """
import mlflow, pathlib, sys
with mlflow.start_run(run_name="from a laptop") as run:
    mlflow.log_params({"a": 1, "b": "x"})
    mlflow.log_metric("loss", 0.5, step=3)
    mlflow.log_text("hello", "notes/hello.txt")
uri = run.info.artifact_uri
assert mlflow.artifacts.load_text(uri + "/notes/hello.txt") == "hello"
assert [f.path for f in mlflow.MlflowClient().list_artifacts(run.info.run_id, "notes")] == ["notes/hello.txt"]
found = mlflow.search_runs(filter_string="metrics.loss < 1 and attributes.run_name = 'from a laptop'")
assert list(found.run_id) == [run.info.run_id], found
mlflow.set_experiment("second")
with mlflow.start_run():
    mlflow.log_metric("x", 1)
assert len(mlflow.search_runs(search_all_experiments=True)) >= 2
print(run.info.run_id)
"""


def test_the_unchanged_python_client_works(tracking: Tracking, bob: httpx.Client, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}
    environment |= {"MLFLOW_TRACKING_URI": tracking.url, "MLFLOW_TRACKING_TOKEN": "bob-token"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CLIENT)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    run = bob.get(f"{API}/runs/get?run_id={done.stdout.split()[-1]}").raise_for_status().json()["run"]
    assert run["info"]["status"] == "FINISHED"
    assert {param["key"]: param["value"] for param in run["data"]["params"]} == {"a": "1", "b": "x"}


def test_a_jobs_second_attempt_may_log_other_parameters(tracking: Tracking, hers: Hers) -> None:
    def params(client: httpx.Client) -> dict[str, str]:
        found = client.get(f"{API}/runs/get", params={"run_id": run}).raise_for_status().json()["run"]["data"]["params"]
        return {row["key"]: row["value"] for row in found}

    with tracking.client("alice-job-token") as first, tracking.client("alice-job-again-token") as second:
        made = post(first, f"{API}/runs/create", experiment_id=hers.experiment).raise_for_status().json()
        run = made["run"]["info"]["run_id"]
        post(first, f"{API}/runs/log-parameter", run_id=run, key="started_at", value="1").raise_for_status()
        post(first, f"{API}/runs/log-parameter", run_id=run, key="rate", value="0.1").raise_for_status()
        # Within one attempt it is a mistake, as it is without a lab.
        assert post(first, f"{API}/runs/log-parameter", run_id=run, key="rate", value="0.2").status_code == 400
        post(second, f"{API}/runs/log-parameter", run_id=run, key="started_at", value="2").raise_for_status()
        batch = [{"key": "rate", "value": "0.1"}, {"key": "host", "value": "n2"}, {"key": "started_at", "value": "3"}]
        assert post(second, f"{API}/runs/log-batch", run_id=run, params=batch).status_code == 400
        post(second, f"{API}/runs/log-batch", run_id=run, params=batch[:2]).raise_for_status()
        # What makes no sense is MLflow's to refuse.
        odd = [{"key": ["rate"], "value": "1"}]
        assert post(second, f"{API}/runs/log-batch", run_id=run, params=odd).status_code == 400
        assert params(second) == {"started_at": "1", "rate": "0.1", "attempt-2/started_at": "2", "host": "n2"}
        # Alice herself, at her desk, is told what MLflow tells everybody.
    with tracking.client("alice-token") as alice:
        assert post(alice, f"{API}/runs/log-parameter", run_id=run, key="rate", value="0.3").status_code == 400
