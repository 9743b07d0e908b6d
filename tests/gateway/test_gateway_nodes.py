"""Draining nodes over REST."""

from __future__ import annotations

import httpx
import pytest
from gateway_lab import V1, Rig

from carrel.core.domain.job import JobState
from carrel.core.domain.nouns import DRAINS


def drain(who: httpx.Client, reason: str = "new GPUs on Friday", node: str = "bench") -> httpx.Response:
    return who.post(f"{V1}/nodes/{node}/drain", json={"reason": reason})


@pytest.mark.gate
def test_nothing_new_starts_on_a_drained_node_and_what_runs_goes_on(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    running = rig.submit(ada, resources={"gpus": 1})
    rig.engine.run(running)
    rig.wait(running, JobState.RUNNING)
    assert drain(root).json() == {"changed": True}
    (node,) = ada.get(f"{V1}/nodes").json()["nodes"]
    assert node["drained"] == "new GPUs on Friday"
    waits = rig.submit(ada, resources={"gpus": 1})
    rig.wait_for(lambda: ada.get(f"{V1}/jobs/{waits}").json()["reason"] == "ReqNodeNotAvail")
    job = ada.get(f"{V1}/jobs/{waits}").json()
    assert job["message"] == "needs 1 GPU on one node; drained: bench (new GPUs on Friday); start unknown"
    assert ada.get(f"{V1}/jobs/{running}").json()["state"] == "RUNNING"
    assert root.post(f"{V1}/nodes/bench/undrain").json() == {"changed": True}
    rig.engine.wait_started(waits)
    assert root.post(f"{V1}/nodes/bench/undrain").json() == {"changed": False}
    assert ada.get(f"{V1}/nodes").json()["nodes"][0]["drained"] is None


def test_another_reason_takes_the_place_of_the_first(rig: Rig, root: httpx.Client) -> None:
    assert drain(root).json() == {"changed": True}
    assert drain(root).json() == {"changed": False}
    assert drain(root, "it  burns\n").json() == {"changed": True}
    assert [one.reason for one in rig.store.of(DRAINS).all()] == ["it burns"]


def test_a_node_that_there_is_not_cannot_be_drained(root: httpx.Client) -> None:
    for answer in (drain(root, node="bank"), root.post(f"{V1}/nodes/bank/undrain")):
        assert (answer.status_code, answer.json()["detail"]) == (404, 'There is no node "bank".')
        assert answer.json()["remedy"] == "There are: bench."


@pytest.mark.parametrize("reason", ["", " \n", "x" * 201])
def test_a_reason_is_wanted(root: httpx.Client, reason: str) -> None:
    assert drain(root, reason).status_code == 422
