"""Who may ask why jobs differ, over the API; what it finds is tested with real jobs (`tests/cli/test_cli_why.py`)."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from gateway_lab import PROJECT, Rig, a_lab, client, serve

from carrel.core.comparison import Metrics
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import StoredFile
from carrel.wire.v1 import API


def done(rig: Rig, http: httpx.Client, user: str, result: str) -> int:
    project = {"MLproject": PROJECT, "result": result}
    body = {"snapshot": rig.upload(user, project), "visible": "account"}
    job = int(http.post(f"{API}/jobs", json=body).raise_for_status().json()["id"])
    rig.engine.run(job)
    rig.engine.end(job, outputs=(StoredFile(path="outputs/r", size=1, digest=rig.store_blob(result.encode())),))
    rig.wait(job, JobState.COMPLETED)
    return job


@pytest.mark.gate
def test_the_runs_are_jobs_of_who_asks_and_come_once(rig: Rig, ada: httpx.Client) -> None:
    asked = {"first": str(done(rig, ada, "ada", "x")), "second": str(done(rig, ada, "ada", "y"))}
    looked = ada.post(f"{API}/comparison/why", json=asked).raise_for_status().json()
    assert ([one["what"] for one in looked["candidates"]], looked["answer"]) == (["code result"], "")
    assert [one["job"] for one in looked["variants"]] == [None, None], "looking submits nothing"
    begun = ada.post(f"{API}/comparison/why/runs", json=asked).raise_for_status().json()
    jobs = [one["job"] for one in begun["variants"]]
    assert len(set(jobs)) == 2
    again = ada.post(f"{API}/comparison/why/runs", json=asked).raise_for_status().json()
    assert [one["job"] for one in again["variants"]] == jobs
    assert {ada.get(f"{API}/jobs/{job}").json()["owner"] for job in jobs} == {"ada"}


def test_only_who_may_repeat_both_and_has_their_code_may_ask(
    rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    first, second = done(rig, ada, "ada", "x"), done(rig, ada, "ada", "y")
    own = done(rig, bob, "bob", "z")
    for asked in ((first, second), (own, first)):
        answer = bob.post(f"{API}/comparison/why", json={"first": str(asked[0]), "second": str(asked[1])})
        assert answer.status_code in (403, 404), answer.text
    answer = root.post(f"{API}/comparison/why", json={"first": str(first), "second": str(second)})
    assert (answer.status_code, answer.json()["detail"]) == (422, f"The code of job {first} is not yours, or not kept.")
    assert "candidates" not in answer.text


def test_a_run_from_when_there_was_no_tracking_server_is_run_again(tmp_path: Path) -> None:
    """It has no metrics, and would never have any."""
    ahead = [0.0]
    with (
        a_lab(tmp_path, clock=lambda: time.time() + ahead[0], run_metrics=lambda _owner, _run: Metrics()) as rig,
        serve(rig.app) as url,
        client(url, rig.headers()) as http,
    ):
        asked = {"first": str(done(rig, http, "ada", "x")), "second": str(done(rig, http, "ada", "y"))}

        def runs() -> list[int]:
            found = http.post(f"{API}/comparison/why/runs", json=asked).raise_for_status().json()
            return [int(one["job"]) for one in found["variants"]]

        before = runs()
        for job in before:
            rig.engine.run(job)
            rig.engine.end(job, outputs=(StoredFile(path="outputs/r", size=1, digest=rig.store_blob(b"x")),))
            rig.wait(job, JobState.COMPLETED)
        for named in asked.values():
            rig.store.outbox.set_run(int(named), f"run{named}", "1")
        assert http.post(f"{API}/comparison/why", json=asked).status_code == 503, "they may come yet"
        ahead[0] = 3600.0
        assert not set(runs()) & set(before)
