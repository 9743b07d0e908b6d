"""Sessions over HTTP: who may start, see and open them, and what of others shows among the GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from gateway_lab import V1, Rig

from carrel.core.control.sessions import NodeReport
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Started
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition
from support.small_code_server import put

KEPT = {
    "id": "t1",
    "job": 1,
    "owner": "ada",
    "label": "secret.ipynb",
    "kernel": "k",
    "pid": 7,
    "state": "resident",
    "mine": False,
}
STATUS = {
    "op": "status",
    "tier": "simulated",
    "simulated": True,
    "devices": [
        {
            "uuid": "SIM-0",
            "index": 0,
            "name": "simulated GPU",
            "type": "simulated",
            "memory": 100,
            "simulated": True,
            "lease": "L1",
        }
    ],
    "tenants": [KEPT],
    "leases": [{"id": "L1", "tenant": "t1", "job": 1, "owner": "ada", "devices": ["SIM-0"], "since": 1.0, "state": "active"}],
    "queue": [{"tenant": "t1", "job": 1, "owner": "ada", "gpus": 1, "position": 1, "since": 1.0, "message": "waits"}],
    "history": [{"cell": "secret"}],
}


@pytest.mark.gate
def test_a_session_is_a_job_that_its_owner_opens(rig: Rig, ada: httpx.Client) -> None:
    answer = ada.post(f"{V1}/sessions", json={"name": "work"}, headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 201
    session = answer.json()
    job = session["job"]["id"]
    assert (session["kind"], session["gpus"], session["reserve"], session["job"]["kind"]) == ("notebook", 1, False, "session")
    assert Path(session["directory"]) == rig.home / "files" / "ada"
    assert session["job"]["resources"]["gpus"] == 0  # its cells borrow
    again = ada.post(f"{V1}/sessions", json={"name": "work"}, headers={"Idempotency-Key": "k1"})
    assert (again.status_code, again.json()["job"]["id"]) == (200, job)
    launch, _token = rig.engine.wait_started(job)
    assert launch.task.session is not None
    assert "carrel.notebooks.jupyter" in launch.task.command
    rig.engine.say(job, Started(pid=1))
    rig.wait(job, JobState.RUNNING)
    shown = ada.get(f"{V1}/sessions/{job}").json()
    assert (shown["ready"], shown["connections"]) == (True, 2)
    assert [row["job"]["id"] for row in ada.get(f"{V1}/sessions").json()["sessions"]] == [job]
    assert ada.post(f"{V1}/sessions/{job}/open", params={"path": "a b.ipynb"}).json()["url"].endswith(f"/open/{job}/a b.ipynb")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"gpus": 3}, 422, "no node has more than 2"),
        ({"gpus": -1}, 422, "Ask for 0 or more"),
        ({"gpus": 0, "reserve": True}, 422, "reservation of 0 GPUs"),
        ({"qos": "x"}, 422, 'no QoS \\"x\\"'),
        ({"cpus": 0}, 422, "A job needs at least 1"),
        ({"cpus": 99}, 422, "99 CPUs"),
        ({"memory": "lots"}, 422, "lots"),
        ({"name": "\n"}, 422, "name"),
        ({"directory": "/tmp"}, 403, "may not choose the directory"),
        ({"environment": "/usr"}, 403, "carrel env create"),
        ({"environment": ""}, 422, "no usable name"),
        ({"environment": "torhc"}, 404, "torhc"),
        ({"colour": "red"}, 422, "colour"),
    ],
)
def test_what_cannot_be_is_refused_with_words(ada: httpx.Client, body: dict[str, object], status: int, said: str) -> None:
    answer = ada.post(f"{V1}/sessions", json=body)
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert ada.get(f"{V1}/sessions").json()["sessions"] == []


def test_vscode_is_offered_where_the_lab_has_the_program(
    rig: Rig, ada: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = ada.post(f"{V1}/sessions", json={"kind": "vscode"})
    assert refused.status_code == 422
    assert "no program code-server" in refused.text
    assert "carrel ssh" in refused.json()["remedy"]
    monkeypatch.setenv("PATH", put(tmp_path / "bin"))
    assert ada.post(f"{V1}/sessions", json={"kind": "vscode"}).json()["kind"] == "vscode"
    in_image = ada.post(f"{V1}/sessions", json={"kind": "vscode", "image": "debian:12"})
    assert "does not run in an image, as debian:12 is" in in_image.text
    cluster = slurm_partition("cluster", SlurmPartition(partition="gpu"))
    rig.written.append(replace(rig.written[-1], partitions={"cluster": cluster}))
    assert rig.lab.administration.apply_rules()
    there = ada.post(f"{V1}/sessions", json={"kind": "vscode"})
    assert there.status_code == 422
    assert 'partition \\"cluster\\" is of a cluster' in there.text


def test_a_reservation_holds_its_gpus_as_a_job_does(rig: Rig, ada: httpx.Client) -> None:
    job = ada.post(f"{V1}/sessions", json={"gpus": 2, "reserve": True}).json()["job"]["id"]
    assert len(rig.engine.wait_started(job)[0].devices) == 2


def test_an_administrator_chooses_the_directory(rig: Rig, root: httpx.Client, tmp_path: Path) -> None:
    assert root.post(f"{V1}/sessions", json={"directory": str(tmp_path)}).json()["directory"] == str(tmp_path)
    assert root.post(f"{V1}/sessions", json={"directory": str(tmp_path / "none")}).status_code == 422


def test_a_session_cannot_be_run_again_or_opened_after_its_end(rig: Rig, ada: httpx.Client) -> None:
    job = ada.post(f"{V1}/sessions", json={}).json()["job"]["id"]
    rig.engine.wait_started(job)
    assert ada.post(f"{V1}/jobs/{job}/rerun").status_code == 422
    ada.post(f"{V1}/jobs/{job}/cancel")
    rig.wait(job, JobState.CANCELLED)
    assert ada.post(f"{V1}/sessions/{job}/open").status_code == 409
    assert ada.get(f"{V1}/sessions").json()["sessions"] == []
    assert len(ada.get(f"{V1}/sessions", params={"ended": "true"}).json()["sessions"]) == 1


def test_of_others_the_gpus_show_that_they_are_there_and_nothing_else(
    rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    assert ada.get(f"{V1}/gpus").json()["available"] is False
    rig.lender.said = STATUS
    mine, theirs, all_of_it = (http.get(f"{V1}/gpus").json() for http in (ada, bob, root))
    assert (mine["tenants"][0]["label"], mine["tenants"][0]["mine"]) == ("secret.ipynb", True)
    assert (all_of_it["leases"][0]["owner"], all_of_it["leases"][0]["mine"]) == ("ada", False)
    assert "secret" not in str(theirs)
    assert "ada" not in str(theirs)
    for part in ("tenants", "leases", "queue"):
        assert (theirs[part][0]["job"], theirs[part][0]["mine"]) == (None, False)
    assert theirs["devices"][0]["lease"] == "L1"
    # The same of a cluster's nodes, where the lab knows whose a job is and the broker only as whom it runs.
    rig.lender.said = {}
    assert ada.post(f"{V1}/sessions", json={}).json()["job"]["id"] == KEPT["job"]
    by_uid = {part: [{**row, "owner": "uid:1000"} for row in STATUS[part]] for part in ("tenants", "leases", "queue")}
    rig.nodes.append(NodeReport(node="n7", age=300.0, current=False, ended=False, status=STATUS | by_uid))
    (mine,), (theirs,) = (http.get(f"{V1}/gpus").json()["nodes"] for http in (ada, bob))
    assert (mine["tenants"][0]["label"], mine["node"], mine["age"], mine["current"]) == (
        "notebook 1: secret.ipynb",
        "n7",
        300.0,
        False,
    )
    assert "secret" not in str(theirs)
    assert "ada" not in str(theirs)
