"""Every endpoint of MLflow's own list, through the proxy and to the real server, asked by everybody: the answers are those of
`mlflow_access_table.txt`, nobody but their owner sees or changes anything, and an endpoint without a row fails.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tracking_support import Tracking

from carrel.lab.tracking.tenancy import Kind, kind_of, workspace_of

pytestmark = pytest.mark.mlflow

TABLE = Path(__file__).with_name("mlflow_access_table.txt")
API = "/api/2.0/mlflow"
#: Column -> the token of `tracking_support.PEOPLE`; who has none there is nobody, expired or revoked alike.
ACTORS = {
    "owner": "alice-token",
    "job": "alice-job-token",
    "colleague": "cora-token",
    "stranger": "bob-token",
    "manager": "mara-token",
    "operator": "olga-token",
    "admin": "root-token",
    "expired": "a-token-that-has-expired",
    "revoked": "a-token-that-was-revoked",
    "nobody": "",
}
OWNERS = ("owner", "job")


@dataclass(frozen=True)
class Row:
    method: str
    #: As MLflow writes it, below /api or /ajax-api.
    path: str
    answers: dict[str, str]


@dataclass(frozen=True)
class Things:
    """Something of everything, of Alice's."""

    secret: str
    experiment: str
    run: str
    model: str
    registered: str

    def body(self) -> dict[str, object]:
        """All fields that any of MLflow's messages asks for: it passes over those that it does not know."""
        return {
            "experiment_id": self.experiment,
            "experiment_ids": [self.experiment],
            "experiment_name": self.registered,
            "run_id": self.run,
            "run_ids": [self.run],
            "run_uuid": self.run,
            "name": self.registered,
            "new_name": self.registered,
            "version": "1",
            "alias": "best",
            "stage": "Staging",
            "archive_existing_versions": False,
            "metric_key": "loss",
            "key": "loss",
            "value": "1",
            "timestamp": 1,
            "step": 1,
            "path": "",
            "max_results": 10,
            "description": "x",
            "source": f"mlflow-artifacts:/workspaces/{workspace_of('alice')}/{self.experiment}/{self.run}/artifacts",
        }

    def also(self, path: str) -> dict[str, object]:
        """What one endpoint wants beside that, or otherwise."""
        query = "query Q($id: String!) { mlflowGetRun(input: {runId: $id}) { run { info { runName } data { tags { value } } } } }"
        other: dict[str, dict[str, object]] = {
            "experiments/create": {"name": f"new-{secrets.token_hex(6)}"},
            "registered-models/create": {"name": f"new-{secrets.token_hex(6)}"},
            "logged-models/<model_id>": {"model_id": self.model, "status": "LOGGED_MODEL_READY"},
            "logged-models/<model_id>/params": {"model_id": self.model},
            "logged-models/<model_id>/tags": {"tags": [{"key": "a", "value": "b"}]},
            "runs/log-model": {
                "model_json": json.dumps({"artifact_path": "x", "run_id": self.run, "utc_time_created": "now", "flavors": {}})
            },
            "runs/outputs": {"models": [{"model_id": self.model, "step": 0}]},
            "traces/search": {
                "locations": [{"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": self.experiment}}]
            },
            "/graphql": {"query": query, "variables": {"id": self.run}},
        }
        return other.get(re.sub(r"^/\d.0/mlflow/", "", path), {})

    def marks(self) -> tuple[str, ...]:
        """What must be in no answer to others, unless they have said it themselves."""
        return (self.secret, self.run, self.model)


def things(alice: httpx.Client) -> Things:
    secret = f"secret-{secrets.token_hex(6)}"

    def post(path: str, **body: object) -> httpx.Response:
        return alice.post(f"{API}/{path}", json=body).raise_for_status()

    experiment = post("experiments/create", name=secret).json()["experiment_id"]
    run = post("runs/create", experiment_id=experiment, run_name=secret).json()["run"]["info"]["run_id"]
    post("runs/log-metric", run_id=run, key="loss", value=0.125, timestamp=1, step=1)
    post("runs/set-tag", run_id=run, key="note", value=secret)
    model = post("logged-models", experiment_id=experiment, name=secret, source_run_id=run).json()["model"]["info"]["model_id"]
    post("registered-models/create", name=secret)
    source = f"mlflow-artifacts:/workspaces/{workspace_of('alice')}/{experiment}/{run}/artifacts"
    post("model-versions/create", name=secret, source=source, run_id=run)
    post("registered-models/alias", name=secret, alias="best", version="1")
    alice.put(
        f"/api/2.0/mlflow-artifacts/artifacts/{experiment}/{run}/artifacts/a.txt", content=secret.encode()
    ).raise_for_status()
    return Things(secret=secret, experiment=experiment, run=run, model=model, registered=secret)


def state(alice: httpx.Client, what: Things) -> str:
    """What changes when somebody has touched Alice's things."""
    found = [
        alice.get(f"{API}/runs/get", params={"run_id": what.run}),
        alice.get(f"{API}/experiments/get", params={"experiment_id": what.experiment}),
        alice.get(f"{API}/logged-models/{what.model}"),
        alice.get(f"{API}/artifacts/list", params={"run_id": what.run}),
        alice.get(f"{API}/registered-models/get", params={"name": what.registered}),
        alice.post(f"{API}/runs/search", json={"experiment_ids": [what.experiment]}),
    ]
    return json.dumps([answer.raise_for_status().json() for answer in found], sort_keys=True)


def read_table() -> list[Row]:
    rows = []
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            method, path, *answers = line.split()
            told = answers * len(ACTORS) if len(answers) == 1 else answers
            assert len(told) == len(ACTORS), line
            rows.append(Row(method, path, dict(zip(ACTORS, told, strict=True))))
    return rows


def endpoints() -> set[tuple[str, str]]:
    """Method and path of all that MLflow's server answers, once for both of its prefixes."""
    from mlflow.server.handlers import get_endpoints

    return {(method, re.sub("^/(ajax-)?api", "", path)) for path, _, methods in get_endpoints() for method in methods}


def ask(client: httpx.Client, prefix: str, row: Row, what: Things) -> httpx.Response:
    names = {"model_id": what.model, "tag_key": "a", "artifact_path": f"{what.experiment}/{what.run}/artifacts/a.txt"}
    path = re.sub(r"<(?:path:)?(\w+)>", lambda found: names.get(found[1], what.run), row.path)
    path = path if path.startswith("/graphql") else prefix + path
    if row.method == "GET":
        query = {name: value for name, value in what.body().items() if value != ""}
        return client.get(path, params=query)  # type: ignore[arg-type]
    if row.method == "PUT":
        return client.put(path, content=b"x")
    body = what.also(row.path) if path == "/graphql" else what.body() | what.also(row.path)
    return client.request(row.method, path, json=body)


def offered(row: Row) -> bool:
    path = re.sub(r"<[^>]+>", "x", row.path)
    return kind_of(row.method, path if path == "/graphql" else f"/api{path}") is not Kind.REFUSED


@pytest.mark.gate
def test_every_endpoint_of_mlflows_has_a_row() -> None:
    told = {(row.method, row.path) for row in read_table()}
    assert endpoints() - told == set(), "endpoints without a row in mlflow_access_table.txt"
    assert told - endpoints() == set()
    for row in read_table():
        assert offered(row) == (set(row.answers.values()) != {"no"}), (row.method, row.path)


def test_everybody_gets_the_answers_of_the_table(tracking: Tracking) -> None:
    wrong: list[str] = []
    with tracking.client(ACTORS["owner"]) as alice:
        mine = {actor: things(alice) for actor in OWNERS}
        before = [state(alice, what) for what in mine.values()]
        walked = sum(walk(tracking, actor, mine["owner"], wrong) for actor in ACTORS if actor not in OWNERS)
        assert [state(alice, what) for what in mine.values()] == before
        walked += sum(walk(tracking, actor, mine[actor], wrong) for actor in OWNERS)
    assert wrong == [], f"{len(wrong)} of {walked} are wrong"


def walk(tracking: Tracking, actor: str, what: Things, wrong: list[str]) -> int:
    """Ask for everything as one of them, in the order of the table: what removes things comes last."""
    count = 0
    with tracking.client(ACTORS[actor]) as client:
        if actor not in ("admin", *OWNERS):
            client.headers["X-MLFLOW-WORKSPACE"] = "alice"  # an administrator's to say
        if not ACTORS[actor]:
            del client.headers["authorization"]
        for row in read_table():
            answer = ask(client, "/api", row, what)
            count += 1
            expected = row.answers[actor]
            signed_in = actor not in ("expired", "revoked", "nobody")
            right = str(answer.status_code) == (expected if expected != "no" else "404" if signed_in else "401")
            said = json.dumps(what.body() | what.also(row.path)) + str(answer.request.url)
            seen = [] if actor in OWNERS else [mark for mark in what.marks() if mark in answer.text and mark not in said]
            if not right or seen:
                wrong.append(
                    f"{row.method} {row.path} as {actor}: {answer.status_code}, not {expected}; {seen} {answer.text[:200]}"
                )
    return count
