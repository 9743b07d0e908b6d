"""Reports of use over REST."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import httpx
import pytest
from gateway_lab import V1, Rig

from carrel.core.domain.job import JobState, Reason
from carrel.core.domain.launch import Sampled, Started, Usage
from carrel.testing.waiting import wait_until


@pytest.fixture
def work(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> Rig:
    """Ada's job has ended well, and Bob's has failed."""
    for name, who, state in (("ada", ada, JobState.COMPLETED), ("bob", bob, JobState.FAILED)):
        job = who.post(f"{V1}/jobs", json={"snapshot": rig.upload(name), "resources": {"gpus": 1}}).json()["id"]
        rig.engine.run(job)
        rig.engine.end(job, state=state, reason=Reason(code="NonZeroExitCode", message="It is over."), log=b"hello\n")
        rig.wait(job, state)
    return rig


@pytest.mark.gate
def test_everybody_sees_their_own_use_and_administrators_all(
    work: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    said = {name: who.get(f"{V1}/report/use").json() for name, who in (("ada", ada), ("bob", bob), ("root", root))}
    assert {name: {row["name"] for row in each["rows"]} for name, each in said.items()} == {
        "ada": {"ada"},
        "bob": {"bob"},
        "root": {"ada", "bob"},
    }
    assert {name: each["owner"] for name, each in said.items()} == {"ada": "ada", "bob": "bob", "root": None}
    rows = {row["name"]: row for row in said["root"]["rows"]}
    assert list(rows["ada"]["held_by_end"]) == ["completed"]
    assert list(rows["bob"]["held_by_end"]) == ["failed"]
    assert said["root"]["total"]["held"] == pytest.approx(rows["ada"]["held"] + rows["bob"]["held"])
    (row,) = work.store.jobs.attempts(1)
    assert row.ended_at is not None
    assert rows["ada"]["held"] == pytest.approx(row.ended_at - row.leased_at)


def test_rows_are_what_was_asked_for(work: Rig, root: httpx.Client) -> None:
    def names(by: str) -> list[str]:
        return [row["name"] for row in root.get(f"{V1}/report/use", params={"by": by}).json()["rows"]]

    assert (names("account"), names("qos"), names("kind")) == (["default"], ["normal"], ["task"])
    assert [datetime.fromisoformat(week).weekday() for week in names("week")] in ([0], [0, 0])
    assert root.get(f"{V1}/report/use", params={"by": "colour"}).status_code == 422


def test_a_range_is_in_utc_and_does_not_end_before_it_begins(work: Rig, root: httpx.Client) -> None:
    tomorrow = datetime.fromtimestamp(time.time() + 86400, UTC)
    for at in (tomorrow.strftime("%Y-%m-%d"), tomorrow.isoformat(), tomorrow.astimezone().isoformat()):
        assert root.get(f"{V1}/report/use", params={"to": at}).json()["total"]["jobs"] == 2, at
    assert root.get(f"{V1}/report/use", params={"to": "2020-01-01"}).json()["rows"] == []
    backwards = root.get(f"{V1}/report/use", params={"from": "2020-01-02", "to": "2020-01-01"})
    assert (backwards.status_code, "end before it begins" in backwards.json()["detail"]) == (422, True)
    for wrong in ("yesterday", "2020-13-01", "1e400", "0001-01-01T00:00:00+14:00", "1969-01-01"):
        assert root.get(f"{V1}/report/use", params={"from": wrong}).status_code == 422
        assert root.get(f"{V1}/report/starts", params={"to": wrong}).status_code == 422
    assert root.get(f"{V1}/report/use", params={"to": "9999-12-31T23:59:59-14:00"}).status_code == 422


def test_fewer_than_five_people_are_told_nowhere_without_names(work: Rig, root: httpx.Client) -> None:
    told = root.get(f"{V1}/report/use", params={"by": "account", "anonymous": True}).json()
    assert (told["rows"], told["total"]["jobs"]) == ([], 0)
    assert root.get(f"{V1}/report/use", params={"by": "week", "anonymous": True}).json()["rows"] == []
    for by in ("user", "project"):
        refused = root.get(f"{V1}/report/use", params={"by": by, "anonymous": True})
        assert (refused.status_code, "of one person each" in refused.json()["detail"]) == (422, True)


@pytest.mark.gate
def test_a_user_reads_the_one_thing_that_is_worth_changing(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> None:
    body = {"snapshot": rig.upload("ada"), "name": "train", "resources": {"gpus": 1, "memory": "12G"}}
    for _ in range(3):
        job = ada.post(f"{V1}/jobs", json=body).json()["id"]
        rig.engine.run(job)
        rig.engine.end(job, usage=Usage(memory_peak=2**30))
        rig.wait(job, JobState.COMPLETED)
    said = ada.get(f"{V1}/report/use").json()["hint"]
    assert said.startswith("train (3 jobs in 7 days): The last 3 of this name took at most 1G of memory: `--memory 2G`")
    assert bob.get(f"{V1}/report/use").json()["hint"] == ""


def test_how_long_jobs_took_to_begin(work: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    (mine,) = ada.get(f"{V1}/report/starts").json()["classes"]
    assert (mine["qos"], mine["waited"]["count"], mine["to_output"]["count"]) == ("normal", 1, 1)
    assert mine["to_output"]["median"] == mine["to_output"]["p95"] >= mine["waited"]["median"]
    (all_,) = root.get(f"{V1}/report/starts").json()["classes"]
    assert all_["prepared"]["count"] == 2
    empty = root.get(f"{V1}/report/starts", params={"to": "2020-01-01"}).json()
    assert empty["classes"] == []


def test_attempts_are_those_of_the_jobs_that_one_may_see(
    work: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    said = {name: who.get(f"{V1}/report/jobs").json() for name, who in (("ada", ada), ("bob", bob), ("root", root))}
    assert {name: [one["owner"] for one in each["attempts"]] for name, each in said.items()} == {
        "ada": ["ada"],
        "bob": ["bob"],
        "root": ["ada", "bob"],
    }
    (mine,) = said["ada"]["attempts"]
    (row,) = work.store.jobs.attempts(mine["job"])
    assert (mine["state"], mine["since"], mine["ended_at"]) == ("COMPLETED", row.leased_at, row.ended_at)


def test_attempts_come_page_by_page(work: Rig, root: httpx.Client) -> None:
    first = root.get(f"{V1}/report/jobs", params={"limit": 1}).json()
    told = {"from": first["begin"], "to": first["end"], "limit": 1}
    second = root.get(f"{V1}/report/jobs", params={**told, "after": first["next"]}).json()
    third = root.get(f"{V1}/report/jobs", params={**told, "after": second["next"]}).json()
    assert [[one["job"] for one in page["attempts"]] for page in (first, second, third)] == [[1], [2], []]
    assert (third["next"], third["end"]) == (None, first["end"])
    assert root.get(f"{V1}/report/jobs", params={"to": "2020-01-01"}).json()["attempts"] == []
    assert root.get(f"{V1}/report/jobs", params={"limit": 0}).status_code == 422


def test_how_busy_gpus_were_is_reported_where_it_was_measured(rig: Rig, ada: httpx.Client) -> None:
    for means in ({}, {"GPU-a": 20.0, "GPU-b": 60.0}):
        job = ada.post(f"{V1}/jobs", json={"snapshot": rig.upload("ada"), "resources": {"gpus": 1}}).json()["id"]
        rig.engine.run(job)
        rig.engine.say(job, Sampled(usage=Usage(gpu_mean=means, gpu_samples=len(means))))
        rig.engine.end(job, usage=Usage(gpu_mean=means, gpu_samples=200 if means else 0))
        rig.wait(job, JobState.COMPLETED)
    total = ada.get(f"{V1}/report/use").json()["total"]
    (row,) = rig.store.jobs.attempts(job)
    assert row.started_at is not None
    assert row.ended_at is not None
    assert total["measured"] == pytest.approx(row.ended_at - row.started_at)
    assert total["busy"] == pytest.approx(0.4 * total["measured"])
    (attempt,) = ada.get(f"{V1}/jobs/{job}").json()["attempts"]
    assert attempt["usage"]["gpu_mean"] == {"GPU-a": 20.0, "GPU-b": 60.0}
    assert ada.get(f"{V1}/jobs/{job}").json()["hint"] == ""


@pytest.mark.gate
def test_what_was_measured_is_told_by_type_of_gpu_node_and_project(rig: Rig, ada: httpx.Client) -> None:
    body = {"snapshot": rig.upload("ada"), "name": "train", "resources": {"gpus": 1, "memory": "1G"}}
    thesis, train = (ada.post(f"{V1}/jobs", json=body | more).json()["id"] for more in ({"experiment": "thesis"}, {}))
    used = Usage(
        memory_peak=2**28,
        gpu_mean={"GPU-a": 90.0},
        gpu_samples=200,
        gpu_sm_mean={"GPU-a": 25.0},
        gpu_memory_peak={"GPU-a": 35 * 2**30},
        gpu_energy={"GPU-a": 7_200_000.0},
    )
    for job, usage, hardware in ((thesis, used, {"gpu_0": "NVIDIA H200, 140G, GPU-a"}), (train, Usage(), {})):
        rig.engine.say(job, Started(pid=4242, hardware=hardware))
        rig.engine.end(job, usage=usage)
        rig.wait(job, JobState.COMPLETED)

    def told(by: str) -> dict[str, dict[str, float]]:
        return {row["name"]: row for row in ada.get(f"{V1}/report/use", params={"by": by}).json()["rows"]}

    by_project = told("project")
    assert set(by_project) == {"ada/thesis", "ada/train"}
    row, other = by_project["ada/thesis"], by_project["ada/train"]
    assert (row["sm_busy"] / row["sm_measured"], row["busy"] / row["measured"]) == pytest.approx((0.25, 0.9))
    assert (row["memory_peak"] / row["memory"], row["gpu_memory_peak"] / row["gpu_memory"]) == pytest.approx((0.25, 0.25))
    # Two kWh, each of which the lab's site says makes 400 g.
    assert (row["energy"], row["co2"]) == pytest.approx((7_200_000, 800))
    assert (other["sm_measured"], other["energy"], other["memory"]) == (0, 0, 0)
    assert row["asked"] == pytest.approx(ada.get(f"{V1}/jobs/{thesis}").json()["resources"]["time"])
    by_type = told("gpu_type")
    assert by_type["h200"]["energy"] == row["energy"]
    assert by_type[""]["held"] == pytest.approx(other["held"])
    (node,) = {attempt.node for job in (thesis, train) for attempt in rig.store.jobs.attempts(job)}
    assert told("node")[node]["attempts"] == 2


def test_what_jobs_wait_for_is_told_by_class(rig: Rig, ada: httpx.Client) -> None:
    rig.running(ada, resources={"gpus": 2})
    waiting = rig.submit(ada, resources={"gpus": 2})
    wait_until(lambda: any(event.type == "queue" for event in rig.events(waiting)), timeout=60)
    (told,) = ada.get(f"{V1}/report/starts").json()["classes"]
    assert list(told["waits"]) == ["Resources"]
    assert told["waits"]["Resources"] > 0
