"""From the outbox to MLflow: in order, in batches, once, and nothing lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from memory_outbox import MemoryOutbox
from tracking_support import Tracking

from carrel.lab.tracking.artifacts import ArtifactStore
from carrel.lab.tracking.batch import batches, call_arguments, entries_of
from carrel.lab.tracking.rest import MlflowRest, Refused
from carrel.lab.tracking.server import TrackingServer
from carrel.lab.tracking.shipper import Shipper
from carrel.lab.tracking.tenancy import workspace_of
from carrel.testing.waiting import PATIENCE

API = "/api/2.0/mlflow"
QUICK = (0.05, 0.1, 0.2)


def creation(job_id: int, *, lab: str, start: float | None = None, **more: Any) -> tuple[str, dict[str, Any]]:
    payload = {
        "owner": "alice",
        "user": "Alice",
        "experiment": None,
        "run_name": f"job {job_id}",
        "start_time": round((time.time() if start is None else start) * 1000),
        "params": {"epochs": "5"},
        "tags": {"carrel.lab": lab, "carrel.job_id": str(job_id)},
    }
    return "create_run", payload | more


def update(**what: Any) -> tuple[str, dict[str, Any]]:
    return "update", {"owner": "alice", **what}


def metric(key: str, value: float, step: int = 0) -> dict[str, Any]:
    return {"key": key, "value": value, "timestamp": 1_700_000_000_000 + step, "step": step}


def end(status: str = "FINISHED") -> tuple[str, dict[str, Any]]:
    return "end_run", {"owner": "alice", "status": status, "end_time": 1_800_000_000_000}


class Counting(MlflowRest):
    """The real client, which also tells how often it was used, and can lose its connection after a call."""

    def __init__(self, server: TrackingServer) -> None:
        super().__init__(server.socket)
        self.artifacts = server.artifacts
        self.calls: list[str] = []

    def _send(self, workspace: str, method: str, path: str, **content: Any) -> httpx.Response:
        self.calls.append(path.partition("?")[0].removeprefix(API))
        return super()._send(workspace, method, path, **content)


@pytest.fixture
def rest(tracking: Tracking) -> Iterator[Counting]:
    client = Counting(tracking.server)
    yield client
    client.close()


@pytest.fixture
def alice(tracking: Tracking) -> Iterator[httpx.Client]:
    with tracking.client("alice-token") as client:
        yield client


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> str:
    """A lab of its own for each test: they share one MLflow."""
    return str(request.node.name)


@pytest.fixture
def outbox() -> MemoryOutbox:
    return MemoryOutbox()


def ship(outbox: MemoryOutbox, rest: Counting, *, timeout: float = 30, **options: Any) -> None:
    """A shipper's whole life: until the outbox is empty."""
    shipper = Shipper(outbox, rest, artifacts=rest.artifacts, pauses=QUICK, **options)
    shipper.notify()
    shipper.start()
    try:
        assert shipper.wait_idle(timeout), outbox.pending(10)
    finally:
        shipper.stop()


def run_of(alice: httpx.Client, outbox: MemoryOutbox, job_id: int) -> dict[str, Any]:
    run_id, _ = outbox.runs[job_id]
    run: dict[str, Any] = alice.get(f"{API}/runs/get", params={"run_id": run_id}).raise_for_status().json()["run"]
    return run


def pairs(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in rows}


def runs_of_lab(alice: httpx.Client, lab: str) -> list[dict[str, Any]]:
    body = {"experiment_ids": ["0"], "filter": f"tags.`carrel.lab` = '{lab}'", "max_results": 1000}
    found: list[dict[str, Any]] = alice.post(f"{API}/runs/search", json=body).raise_for_status().json().get("runs", [])
    return found


@pytest.mark.gate
@pytest.mark.mlflow
def test_a_jobs_story_becomes_a_run(alice: httpx.Client, rest: Counting, outbox: MemoryOutbox, lab: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"epoch 1\n" * 1000)
    story = [
        creation(1, lab=lab),
        update(tags={"carrel.state": "RUNNING"}),
        update(metrics=[metric("system/cpu_utilization_percentage", 50, 1)]),
        update(metrics=[metric("system/cpu_utilization_percentage", 70, 2)]),
        update(tags={"carrel.state": "COMPLETED"}),
        ("artifact", {"owner": "alice", "artifact_path": "carrel/log.txt", "path": str(log)}),
        ("artifact", {"owner": "alice", "artifact_path": "carrel/uncommitted.diff", "text": "--- a\n"}),
        ("record", {"owner": "alice", "artifact_path": "carrel/record.json"}),
        end(),
    ]
    outbox.add(1, story)
    ship(outbox, rest, record=lambda job_id: {"job": job_id})
    run = run_of(alice, outbox, 1)
    assert run["info"]["status"] == "FINISHED"
    assert run["info"]["end_time"] == 1_800_000_000_000
    assert run["info"]["run_name"] == "job 1"
    assert pairs(run["data"]["params"]) == {"epochs": "5"}
    assert pairs(run["data"]["tags"])["carrel.state"] == "COMPLETED"
    assert pairs(run["data"]["metrics"]) == {"system/cpu_utilization_percentage": 70.0}
    run_id, experiment_id = outbox.runs[1]
    base = f"/api/2.0/mlflow-artifacts/artifacts/{experiment_id}/{run_id}/artifacts/carrel"
    assert alice.get(f"{base}/log.txt").content == log.read_bytes()
    assert alice.get(f"{base}/uncommitted.diff").text == "--- a\n"
    assert alice.get(f"{base}/record.json").json() == {"job": 1}
    assert outbox.refused == {}
    # Nine items: one call for the run and its tags, one for all values, the end; files cost none.
    assert [rest.calls.count(f"/runs/{call}") for call in ("create", "log-batch", "update")] == [1, 1, 1]
    assert not any("artifacts" in call for call in rest.calls)


@pytest.mark.mlflow
def test_a_job_without_values_that_is_over_costs_two_calls(
    alice: httpx.Client, rest: Counting, outbox: MemoryOutbox, lab: str
) -> None:
    outbox.add(1, [creation(1, lab=lab), end()])
    ship(outbox, rest)
    rest.calls.clear()
    tags = {"carrel.lab": lab, "carrel.job_id": "2", "carrel.state": "PENDING"}
    made = creation(2, lab=lab, params={}, tags=tags)
    outbox.add(2, [made, update(tags={"carrel.state": "RUNNING", "node": "n1"}), update(tags={"carrel.state": "FAILED"}), end()])
    ship(outbox, rest)
    assert [call for call in rest.calls if call != "/runs/search"] == ["/runs/create", "/runs/update"]
    assert pairs(run_of(alice, outbox, 2)["data"]["tags"]).items() >= (tags | {"carrel.state": "FAILED", "node": "n1"}).items()


class Choosy(Counting):
    """Makes no run with a tag that MLflow refuses of a run that is there."""

    def create_run(self, *names: Any, tags: Mapping[str, str], **more: Any) -> str:
        if any(len(key) > 250 for key in tags):
            raise Refused("A key is too long.")
        return super().create_run(*names, tags=tags, **more)


@pytest.mark.mlflow
def test_a_tag_that_mlflow_refuses_keeps_no_run_from_being_made(
    tracking: Tracking, alice: httpx.Client, outbox: MemoryOutbox, lab: str
) -> None:
    ids = outbox.add(1, [creation(1, lab=lab), update(tags={"x" * 1000: "1", "good": "2"}), update(tags={"more": "3"}), end()])
    rest = Choosy(tracking.server)
    try:
        ship(outbox, rest)
    finally:
        rest.close()
    assert set(outbox.refused) == {ids[1]}
    run = run_of(alice, outbox, 1)
    assert run["info"]["status"] == "FINISHED"
    assert pairs(run["data"]["tags"]).items() >= {"good": "2", "more": "3", "carrel.job_id": "1"}.items()


@pytest.mark.mlflow
def test_many_values_go_in_few_calls(alice: httpx.Client, rest: Counting, outbox: MemoryOutbox, lab: str) -> None:
    outbox.add(1, [creation(1, lab=lab), *(update(metrics=[metric("loss", i / 10, i)]) for i in range(2500))])
    ship(outbox, rest)
    run_id, _ = outbox.runs[1]
    history = alice.get(f"{API}/metrics/get-history", params={"run_id": run_id, "metric_key": "loss"}).json()["metrics"]
    assert sorted(item["step"] for item in history) == list(range(2500))
    assert rest.calls.count("/runs/log-batch") <= 8


@pytest.mark.mlflow
def test_what_mlflow_refuses_stops_nothing_else(alice: httpx.Client, rest: Counting, outbox: MemoryOutbox, lab: str) -> None:
    ids = outbox.add(
        1,
        [
            creation(1, lab=lab),
            update(params={"good": "1"}),
            update(params={"epochs": "6"}),  # a parameter cannot change
            update(params={"bad\tname": "1", "fine": "2"}, metrics=[metric("loss", 1)]),
            ("artifact", {"owner": "alice", "artifact_path": "carrel/log.txt", "path": "/nonexistent/log"}),
            ("nonsense", {"owner": "alice"}),
            end("FAILED"),
        ],
    )
    ship(outbox, rest)
    run = run_of(alice, outbox, 1)
    assert run["info"]["status"] == "FAILED"
    assert pairs(run["data"]["params"]) == {"epochs": "5", "good": "1", "fine": "2"}
    assert pairs(run["data"]["metrics"]) == {"loss": 1.0}
    assert set(outbox.refused) == {ids[2], ids[3], ids[4], ids[5]}
    assert "epochs" in outbox.refused[ids[2]]
    assert "bad\tname" in outbox.refused[ids[3]] or "bad" in outbox.refused[ids[3]]
    assert "/nonexistent/log" in outbox.refused[ids[4]]


@pytest.mark.mlflow
def test_a_run_that_cannot_be_made_is_told_for_each_item(rest: Counting, outbox: MemoryOutbox, lab: str) -> None:
    ids = outbox.add(1, [creation(1, lab=lab, experiment="x" * 1000), update(metrics=[metric("a", 1)]), end()])
    others = outbox.add(2, [creation(2, lab=lab), end()])
    ship(outbox, rest)
    assert set(outbox.refused) == set(ids)
    assert "no run in MLflow" in outbox.refused[ids[-1]]
    assert 2 in outbox.runs
    assert not set(others) & set(outbox.refused)


class Amnesia(MemoryOutbox):
    """An outbox whose process dies when it is to write down that a run was made."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = threading.Event()

    def set_run(self, job_id: int, run_id: str, experiment_id: str) -> None:
        self.dead.set()
        raise SystemExit  # ends the shipper's thread without a word, as SIGKILL would


@pytest.mark.mlflow
@pytest.mark.parametrize("age", [0.0, 86400.0])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_between_sending_and_crossing_off_makes_no_second_run(
    alice: httpx.Client, rest: Counting, lab: str, age: float
) -> None:
    first = Amnesia()
    story = [creation(1, lab=lab, start=time.time() - age), update(metrics=[metric("loss", 1, 1)]), end()]
    first.add(1, story)
    shipper = Shipper(first, rest, artifacts=rest.artifacts, pauses=QUICK)
    shipper.start()
    assert first.dead.wait(PATIENCE)
    shipper.stop()
    assert len(runs_of_lab(alice, lab)) == 1
    again = MemoryOutbox()
    again.add(1, story)
    ship(again, rest)
    twice = MemoryOutbox()  # everything was sent, nothing crossed off
    twice.add(1, story)
    ship(twice, rest)
    runs = runs_of_lab(alice, lab)
    assert [run["info"]["status"] for run in runs] == ["FINISHED"]
    assert again.runs == twice.runs == {1: (runs[0]["info"]["run_id"], runs[0]["info"]["experiment_id"])}
    history = alice.get(f"{API}/metrics/get-history", params={"run_id": again.runs[1][0], "metric_key": "loss"}).json()["metrics"]
    assert len(history) == 1


@pytest.mark.mlflow
def test_a_run_of_mlflow_run_is_adopted_if_it_is_the_owners(
    tracking: Tracking, alice: httpx.Client, rest: Counting, outbox: MemoryOutbox, lab: str
) -> None:
    def make(client: httpx.Client) -> str:
        answer = client.post(f"{API}/runs/create", json={"experiment_id": "0", "run_name": "made by mlflow run"})
        return str(answer.raise_for_status().json()["run"]["info"]["run_id"])

    with tracking.client("bob-token") as bob:
        mine, bobs = make(alice), make(bob)
        outbox.add(1, [creation(1, lab=lab, adopt=mine), end()])
        stolen = outbox.add(2, [creation(2, lab=lab, adopt=bobs), end("FAILED")])
        ship(outbox, rest)
        untouched = bob.get(f"{API}/runs/get?run_id={bobs}").json()["run"]
    assert outbox.runs[1][0] == mine
    run = run_of(alice, outbox, 1)
    assert run["info"]["status"] == "FINISHED"
    assert run["info"]["run_name"] == "made by mlflow run"
    assert pairs(run["data"]["tags"])["carrel.job_id"] == "1"
    assert set(outbox.refused) == set(stolen)
    assert untouched["info"]["status"] == "RUNNING"
    assert "carrel.job_id" not in pairs(untouched["data"]["tags"])


@pytest.mark.mlflow
def test_a_deleted_experiment_is_restored_for_a_new_run(
    alice: httpx.Client, rest: Counting, outbox: MemoryOutbox, lab: str
) -> None:
    experiment = rest.experiment(workspace_of("alice"), "short-lived")
    alice.post(f"{API}/experiments/delete", json={"experiment_id": experiment}).raise_for_status()
    outbox.add(1, [creation(1, lab=lab, experiment="short-lived"), end()])
    ship(outbox, rest)
    assert outbox.runs[1][1] == experiment
    assert outbox.refused == {}


@pytest.mark.mlflow
def test_nothing_is_lost_while_mlflow_is_down(tracking: Tracking, alice: httpx.Client, outbox: MemoryOutbox, lab: str) -> None:
    rest = MlflowRest(tracking.server.socket)
    shipper = Shipper(outbox, rest, artifacts=tracking.server.artifacts, pauses=QUICK)
    end_listening = tracking.server.on_change(shipper.notify)
    shipper.start()
    try:
        outbox.add(1, [creation(1, lab=lab), update(metrics=[metric("loss", 3, 1)])])
        shipper.notify()
        assert shipper.wait_idle(20)
        tracking.server.stop()
        outbox.add(1, [update(metrics=[metric("loss", 2, 2)]), update(metrics=[metric("loss", 1, 3)]), end()])
        outbox.add(2, [creation(2, lab=lab), end("KILLED")])
        shipper.notify()
        assert not shipper.wait_idle(0.5)
        assert len(outbox.pending(100)) == 5
        tracking.server.start()
        assert shipper.wait_idle(60)
    finally:
        end_listening()
        shipper.stop()
        rest.close()
        tracking.server.start()
        assert tracking.server.wait_ready(60)
    assert outbox.refused == {}
    assert run_of(alice, outbox, 1)["info"]["status"] == "FINISHED"
    assert pairs(run_of(alice, outbox, 1)["data"]["metrics"]) == {"loss": 1.0}
    assert run_of(alice, outbox, 2)["info"]["status"] == "KILLED"
    assert len(runs_of_lab(alice, lab)) == 2


def entries(count: int, group: str, item_id: int = 1) -> list[Any]:
    named = {f"k{i}": "v" for i in range(count)}
    return entries_of(item_id, {group: [metric(key, 1) for key in named] if group == "metrics" else named})


def test_batches_keep_to_mlflows_limits_and_to_the_order() -> None:
    everything = entries(250, "params") + entries(250, "tags") + entries(2500, "metrics")
    made = list(batches(everything))
    assert [entry for batch in made for entry in batch] == everything
    for batch in made:
        arguments = call_arguments(batch)
        assert len(arguments["params"]) <= 100
        assert len(arguments["tags"]) <= 100
        assert len(batch) <= 1000


def test_of_a_tag_that_changes_the_last_value_is_told_and_of_a_parameter_each() -> None:
    entries = [
        *entries_of(1, {"tags": {"state": "RUNNING"}, "params": {"a": "1"}}),
        *entries_of(2, {"tags": {"state": "COMPLETED"}, "params": {"a": "2"}}),
    ]
    made = [call_arguments(batch) for batch in batches(entries)]
    assert [call["params"] for call in made] == [{"a": "1"}, {"a": "2"}]
    assert {key: value for call in made for key, value in call["tags"].items()} == {"state": "COMPLETED"}
    assert sum(len(call["tags"]) for call in made) == 1


def test_a_shipper_without_anything_to_do_stops_at_once(tmp_path: Path) -> None:
    artifacts = ArtifactStore(tmp_path, "sqlite://")
    shipper = Shipper(MemoryOutbox(), MlflowRest(tmp_path / "none"), artifacts=artifacts)
    shipper.start()
    assert shipper.wait_idle(5)
    stopped = threading.Thread(target=shipper.stop)
    stopped.start()
    stopped.join(PATIENCE)
    assert not stopped.is_alive()
