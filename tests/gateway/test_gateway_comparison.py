"""Comparing jobs over the API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from gateway_lab import PROJECT, Rig

from carrel.core.domain.launch import EnvironmentReady, InputsReady, Started, StoredFile
from carrel.wire.v1 import API, ComparisonView

SEEDS = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def done(rig: Rig, http: httpx.Client, user: str = "ada", *, files: dict[str, str] | None = None, **body: Any) -> int:
    """A job that ended, with all that a runner tells."""
    project = {"MLproject": PROJECT.replace("echo", "sh run.sh"), "run.sh": "echo $1\n", **(files or {})}
    snapshot = rig.upload(user, project)
    job = int(http.post(f"{API}/jobs", json={"snapshot": snapshot, **body}).raise_for_status().json()["id"])
    rig.engine.wait_started(job)
    lock = rig.store_blob(b"idna==3.7\n")
    rig.engine.say(job, EnvironmentReady(digest="sha256:e", lock=lock, python="cpython-3.11", built=False, seconds=0.1))
    rig.engine.say(job, InputsReady(digests={}), Started(pid=1, hardware={"cpu": "x", "network": "on"}, seeds=SEEDS))
    output = StoredFile(path="outputs/a", size=1, digest=rig.store_blob(b"a"))
    rig.engine.end(job, outputs=(output,))
    rig.wait_for(lambda: rig.store.jobs.get(job).state.ended)  # type: ignore[union-attr]
    return job


def compare(http: httpx.Client, *jobs: object) -> ComparisonView:
    answer = http.get(f"{API}/comparison", params={"job": [str(job) for job in jobs]})
    assert answer.status_code == 200, answer.text
    return ComparisonView.model_validate_json(answer.text)


@pytest.mark.gate
def test_parameters_and_code_by_file_and_hunk(rig: Rig, ada: httpx.Client) -> None:
    one = done(rig, ada, parameters={"who": "x"})
    two = done(rig, ada, parameters={"who": "y"}, files={"run.sh": "echo $1 twice\n", "notes.md": "hello\n"})
    found = compare(ada, one, two)
    causes = [(each.what, each.cause.value) for each in found.differences if each.cause.value != "result"]
    assert causes == [("parameter who", "likely"), ("code run.sh", "likely"), ("code notes.md", "unlikely")]
    assert found.summary[1] == "First to look at: parameter who. The command was given another value."
    (change,) = found.differences[1].changes
    assert (change.job, change.hunks) == (str(two), ["@@ -1,1 +1,1 @@\n-echo $1\n+echo $1 twice"])
    assert [value.known for value in found.differences[2].values] == ["absent", "value"]
    assert [(job.id, job.attempt, job.state) for job in found.jobs] == [(one, 1, "COMPLETED"), (two, 1, "COMPLETED")]
    # Nobody runs MLflow here, and that is said.
    assert [(each.kinds, each.jobs) for each in found.not_known] == [(["logged parameter", "metric"], [str(one), str(two)])]


def test_a_job_whose_command_has_not_begun_is_not_known_and_not_equal(rig: Rig, ada: httpx.Client) -> None:
    one = done(rig, ada)
    running = ada.post(f"{API}/jobs", json={"snapshot": rig.upload("ada")}).raise_for_status().json()["id"]
    found = compare(ada, one, running)
    lacking = {kind for each in found.not_known if each.jobs == [str(running)] for kind in each.kinds}
    assert {"package", "machine", "output", "setting"} <= lacking
    assert not {each.kind for each in found.differences} & {"package", "machine", "output", "setting"}


def test_the_code_of_others_is_compared_by_its_digest_alone(rig: Rig, ada: httpx.Client, root: httpx.Client) -> None:
    one, two = done(rig, ada), done(rig, ada, files={"run.sh": "echo secret\n"})
    found = compare(root, one, two)
    (code,) = [each for each in found.differences if each.kind == "code"]
    assert (code.path, code.changes) == ("", [])
    assert [each.why for each in found.not_known if "code" in each.kinds] == [
        "It is shown to who has uploaded it, with a token that may submit."
    ]
    assert "secret" not in found.model_dump_json()


def test_code_that_is_not_kept_is_said_to_be_gone(rig: Rig, ada: httpx.Client) -> None:
    one, two = done(rig, ada), done(rig, ada, files={"run.sh": "echo other\n"})
    rig.snapshots.remove(ada.get(f"{API}/jobs/{two}").json()["snapshot"])
    found = compare(ada, one, two)
    assert [each.path for each in found.differences if each.kind == "code"] == [""]
    assert {each.why for each in found.not_known if "code" in each.kinds} == {"Its code is not kept any more."}


def test_elements_of_arrays_have_the_names_that_people_give_them(rig: Rig, ada: httpx.Client) -> None:
    array = ada.post(f"{API}/jobs", json={"snapshot": rig.upload("ada"), "array": "3-4"}).raise_for_status().json()["id"]
    found = compare(ada, f"{array}_3", f"{array}_4")
    assert [job.label for job in found.jobs] == [f"{array}_3", f"{array}_4"]
    assert ada.get(f"{API}/comparison", params={"job": [f"{array}_3", f"{array}_9"]}).status_code == 404


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (["{one}"], 422, "job"),
        (["{one}", "{one}"], 422, "is named twice"),
        (["{one}", "{one}:1"], 422, "is named twice"),
        (["{one}", "x"], 422, "names no attempt"),
        (["{one}", "²"], 422, "names no attempt"),
        (["{one}", "{one}:2"], 404, "has no attempt 2"),
        (["{one}", "999999"], 404, "There is no job 999999"),
        (["{one}"] * 9, 422, "job"),
        (["{one}", "0"], 422, "names no attempt"),
    ],
)
def test_what_cannot_be_compared_says_why(rig: Rig, ada: httpx.Client, names: list[str], status: int, words: str) -> None:
    one = done(rig, ada)
    answer = ada.get(f"{API}/comparison", params={"job": [name.format(one=one) for name in names]})
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
