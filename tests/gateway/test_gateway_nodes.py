"""Draining nodes over REST."""

from __future__ import annotations

import httpx
import pytest
from gateway_lab import Rig

from carrel.core.control.drains import Drains
from carrel.core.domain.job import JobState
from carrel.core.domain.nouns import DRAINS

V1 = "/api/v1"


def submit(rig: Rig, who: httpx.Client) -> int:
    answer = who.post(f"{V1}/jobs", json={"snapshot": rig.upload(), "resources": {"gpus": 1}})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def drain(who: httpx.Client, reason: str = "new GPUs on Friday", node: str = "bench") -> httpx.Response:
    return who.post(f"{V1}/nodes/{node}/drain", json={"reason": reason})


@pytest.mark.gate
def test_nothing_new_starts_on_a_drained_node_and_what_runs_goes_on(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    running = submit(rig, ada)
    rig.engine.run(running)
    rig.wait(running, JobState.RUNNING)
    assert drain(root).json() == {"changed": True}
    (node,) = ada.get(f"{V1}/nodes").json()["nodes"]
    assert node["drained"] == "new GPUs on Friday"
    waits = submit(rig, ada)
    rig.wait_for(lambda: ada.get(f"{V1}/jobs/{waits}").json()["reason"] == "ReqNodeNotAvail")
    job = ada.get(f"{V1}/jobs/{waits}").json()
    assert job["message"] == "needs 1 GPU on one node; drained: bench (new GPUs on Friday); start unknown"
    assert ada.get(f"{V1}/jobs/{running}").json()["state"] == "RUNNING"
    assert root.post(f"{V1}/nodes/bench/undrain").json() == {"changed": True}
    rig.engine.wait_started(waits)
    assert root.post(f"{V1}/nodes/bench/undrain").json() == {"changed": False}
    assert ada.get(f"{V1}/nodes").json()["nodes"][0]["drained"] is None


def test_a_drain_outlives_the_server(rig: Rig, root: httpx.Client) -> None:
    drain(root)
    later = Drains(rig.store.of(DRAINS))
    (node,) = later.apply(rig.engine.nodes())
    assert node.drained == "new GPUs on Friday"
    assert later.apply(rig.engine.nodes()) is later.apply(rig.engine.nodes())
    (drained,) = rig.store.of(DRAINS).all()
    assert (drained.node, drained.by) == ("bench", "root")


def test_another_reason_takes_the_place_of_the_first(rig: Rig, root: httpx.Client) -> None:
    assert drain(root).json() == {"changed": True}
    assert drain(root).json() == {"changed": False}
    assert drain(root, "it  burns\n").json() == {"changed": True}
    assert [one.reason for one in rig.store.of(DRAINS).all()] == ["it burns"]


def test_only_administrators_drain(ada: httpx.Client) -> None:
    refused = drain(ada)
    assert (refused.status_code, refused.json()["detail"]) == (403, "Ada may not drain nodes.")
    assert ada.post(f"{V1}/nodes/bench/undrain").status_code == 403


def test_a_node_that_there_is_not_cannot_be_drained(root: httpx.Client) -> None:
    for answer in (drain(root, node="bank"), root.post(f"{V1}/nodes/bank/undrain")):
        assert (answer.status_code, answer.json()["detail"]) == (404, 'There is no node "bank".')
        assert answer.json()["remedy"] == "There are: bench."


@pytest.mark.parametrize("reason", ["", " \n", "x" * 201])
def test_a_reason_is_wanted(root: httpx.Client, reason: str) -> None:
    assert drain(root, reason).status_code == 422
