from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from gateway_lab import PROJECT, RULES, V1, Rig

from carrel.core.domain.account import Account
from carrel.core.domain.job import JobState
from carrel.core.domain.launch import StoredFile, Usage
from carrel.core.domain.units import GIB


def submit(http: httpx.Client, digest: str, **fields: object) -> httpx.Response:
    headers = {"Idempotency-Key": str(fields.pop("key"))} if "key" in fields else {}
    return http.post(f"{V1}/jobs", json={"snapshot": digest, **fields}, headers=headers)


@pytest.mark.gate
def test_a_task_goes_from_request_to_completed(rig: Rig, ada: httpx.Client) -> None:
    digest = rig.upload()
    answer = submit(ada, digest, parameters={"who": "Ada's lab"}, resources={"gpus": 1, "memory": "1G"}, name="first")
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["name"], job["owner"], job["qos"], job["state"]) == ("first", "ada", "normal", "PENDING")
    assert job["resources"] == {
        "nodes": 1,
        "cpus": 1,
        "memory": 1024**3,
        "gpus": 1,
        "gpu_type": None,
        "gpu_memory": 0,
        "compose": "",
        "time": 3600,
    }
    assert answer.headers["location"] == f"{V1}/jobs/{job['id']}"
    rig.engine.run(job["id"])
    rig.wait(job["id"], JobState.RUNNING)
    file = StoredFile(path="outputs/a b/model.bin", size=5, digest=rig.store_blob(b"hello"))
    rig.engine.end(job["id"], log=b"hello Ada\n", outputs=(file,))
    rig.wait(job["id"], JobState.COMPLETED)

    shown = ada.get(f"{V1}/jobs/{job['id']}").json()
    assert (shown["state"], shown["exit_code"], shown["ended"], shown["simulated"]) == ("COMPLETED", 0, True, True)
    assert shown["command"] == """echo 'Ada'"'"'s lab' 1"""
    assert shown["parameters"] == {"who": "Ada's lab", "times": "1"}
    assert [attempt["state"] for attempt in shown["attempts"]] == ["COMPLETED"]

    log = ada.get(f"{V1}/jobs/{job['id']}/log")
    assert (log.content, log.headers["x-carrel-size"], log.headers["x-carrel-attempt"]) == (b"hello Ada\n", "10", "1")
    assert ada.get(f"{V1}/jobs/{job['id']}/log", params={"offset": -4}).content == b"Ada\n"

    outputs = ada.get(f"{V1}/jobs/{job['id']}/outputs").json()["outputs"]
    assert outputs == [{"path": "outputs/a b/model.bin", "size": 5, "digest": file.digest, "removed_at": None}]
    got = ada.get(f"{V1}/jobs/{job['id']}/outputs/outputs/a b/model.bin")
    assert got.content == b"hello"
    assert got.headers["content-disposition"].startswith("attachment")
    assert ada.get(f"{V1}/jobs/{job['id']}/outputs/nothing").status_code == 404
    assert ada.get(f"{V1}/jobs/{job['id']}/record").json()["task"]["snapshot"] == digest


@pytest.mark.gate
def test_a_preview_says_what_the_last_of_the_name_took(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> None:
    digest = rig.upload()
    for _ in range(3):
        job = submit(ada, digest, name="train").json()["id"]
        rig.engine.run(job)
        rig.engine.end(job, usage=Usage(memory_peak=2 * GIB, cpu_seconds=1.0))
        rig.wait(job, JobState.COMPLETED)
    asked = {"snapshot": digest, "name": "train", "resources": {"memory": "12G", "gpus": 0, "cpus": 1}}
    answer = ada.post(f"{V1}/jobs/preview", json=asked)
    assert answer.status_code == 200, answer.text
    notes = answer.json()["notes"]
    assert "The last 3 of this name took at most 2G of memory: `--memory 3G` instead of 12G is enough." in notes
    assert not any(
        "of this name" in note for note in ada.post(f"{V1}/jobs/preview", json=asked | {"name": "other"}).json()["notes"]
    )


def test_a_parameter_that_is_nearly_declared_is_noted_in_the_answer(rig: Rig, ada: httpx.Client) -> None:
    digest = rig.upload()
    job = submit(ada, digest, parameters={"who": "Ada", "time": "2"}).json()
    assert len(job["notes"]) == 1
    assert 'Did you mean "times"' in job["notes"][0]
    assert ada.get(f"{V1}/jobs/{job['id']}").json()["notes"] == job["notes"]
    refused = submit(ada, digest, parameters={"who": "Ada", "time": "2"}, strict=True)
    assert (refused.status_code, "times" in refused.json()["remedy"]) == (422, True)


def test_a_date_for_the_environment_comes_from_the_request_the_config_or_the_file(rig: Rig, ada: httpx.Client) -> None:
    files = {"MLproject": PROJECT + "carrel: {resolve_as_of: 2021-05-05}\n", "requirements.txt": "numpy==1.26.0\n"}
    digest = rig.upload(files=files)
    config = {"backend_config": {"resolve-as-of": "2022-05-05"}}
    for asked, year in (({}, "2021"), (config, "2022"), ({**config, "resolve_as_of": "2023-05-05"}, "2023")):
        job = submit(ada, digest, parameters={"who": "Ada"}, **asked).json()
        record = ada.get(f"{V1}/jobs/{job['id']}/record").json()
        assert record["task"]["environment"]["as_of"] == f"{year}-05-06T00:00:00Z"
    for wrong in ({"resolve_as_of": "soon"}, {"backend_config": {"resolve_as_of": "soon"}}):
        refused = submit(ada, digest, parameters={"who": "Ada"}, **wrong)
        assert (refused.status_code, 'resolve_as_of is "soon"' in refused.json()["detail"]) == (422, True)


def test_the_same_key_gives_the_same_job_and_another_body_under_it_is_refused(
    rig: Rig, ada: httpx.Client, bob: httpx.Client
) -> None:
    digest = rig.upload()
    first, again = submit(ada, digest, key="k-1"), submit(ada, digest, key="k-1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    other = submit(ada, digest, key="k-1", parameters={"who": "Bob"})
    assert (other.status_code, other.json()["type"]) == (409, "urn:carrel:problem:conflict")
    rig.upload("bob")
    theirs = submit(bob, digest, key="k-1")
    assert theirs.status_code == 201
    assert theirs.json()["id"] != first.json()["id"]


def test_the_request_goes_before_the_backend_config_and_that_before_the_file_and_that_before_the_qos(
    rig: Rig, ada: httpx.Client
) -> None:
    section = "carrel:\n  qos: short\n  account: physics\n  retries: 2\n  resources: {cpus: 3, memory: 3G, gpus: 1, time: 20m}\n"
    digest = rig.upload(files={"MLproject": PROJECT + section})
    rig.written.append(replace(RULES, accounts={name: Account(name=name) for name in ("default", "physics", "chemistry")}))
    assert rig.lab.administration.apply_rules()

    def asked(**fields: object) -> dict[str, object]:
        answer = submit(ada, digest, **fields)
        assert answer.status_code == 201, answer.text
        job = answer.json()
        return {**job["resources"], "qos": job["qos"], "account": job["account"]}

    file = {
        "nodes": 1,
        "cpus": 3,
        "memory": 3 * 1024**3,
        "gpus": 1,
        "gpu_type": None,
        "gpu_memory": 0,
        "compose": "",
        "time": 1200,
        "qos": "short",
        "account": "physics",
    }
    assert asked() == file
    config = {"mem": "2048", "gres": "gpu:2", "account": "chemistry", "qos": "normal"}
    said = {"backend_config": {"preemptible": False}, "preemptible": True}
    for fields, preemptible in (({}, True), (said, True), ({"backend_config": {"preemptible": False}}, False)):
        assert submit(ada, digest, **fields).json()["preemptible"] is preemptible
    by_config = file | {"memory": 2 * 1024**3, "gpus": 2, "account": "chemistry", "qos": "normal"}
    assert asked(backend_config=config) == by_config
    request = {"resources": {"memory": "1G", "cpus": 1}, "qos": "short"}
    assert asked(backend_config=config, **request) == by_config | {"memory": 1024**3, "cpus": 1, "qos": "short"}
    assert asked(backend_config={"partition": "normal"})["qos"] == "normal"
    bare = rig.upload(files={"train.py": "print(1)\n"})
    assert submit(ada, bare, script="train.py", qos="short").json()["resources"]["time"] == 600


@pytest.mark.parametrize(
    ("body", "status", "kind", "words", "remedy"),
    [
        ({"resources": {"cpu": 2}}, 422, "invalid", '"resources.cpu" is unknown', 'Did you mean "cpus"?'),
        ({"snapshott": "x"}, 422, "invalid", '"snapshott" is unknown', 'Did you mean "snapshot"?'),
        ({"resources": {"memory": "8"}}, 422, "invalid", '"8" is not a size', "8G"),
        ({"resources": {"cpus": "many"}}, 422, "invalid", "\"resources.cpus\" is 'many'", ""),
        ({"resources": {"gpus": 9}}, 422, "impossible", "9 GPUs", ""),
        ({"parameters": {"times": "often"}}, 422, "invalid", "often", ""),
        ({"entry_point": "mian"}, 422, "invalid", 'no entry point "mian"', 'Did you mean "main"?'),
        ({"qos": "shrot"}, 422, "invalid", 'no QoS "shrot"', 'Did you mean "short"?'),
        ({"backend_config": {"memm": "1"}}, 422, "invalid", '"memm" is not understood', 'Did you mean "mem"?'),
        ({"backend_config": {"partition": "gpu"}}, 422, "invalid", 'no partition "gpu"', "normal"),
        ({"directory": "../x"}, 422, "invalid", '"../x"', ""),
        ({"directory": "/etc"}, 422, "invalid", '"/etc"', ""),
        ({"name": "a\x00b"}, 422, "invalid", "name", "printable"),
        ({"variables": {"CARREL_TOKEN": "x"}}, 422, "invalid", "CARREL_TOKEN", ""),
        ({"retries": -1}, 422, "invalid", "retries is -1", ""),
        ({"snapshot": "sha256:" + "0" * 64}, 404, "not_found", "no code", "Upload"),
        ({"snapshot": "../../etc/passwd"}, 404, "not_found", "no code", "Upload"),
    ],
)
def test_what_is_wrong_is_said_with_value_and_remedy(
    rig: Rig, ada: httpx.Client, body: dict[str, object], status: int, kind: str, words: str, remedy: str
) -> None:
    answer = submit(ada, **{"digest": rig.upload(), **body})
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, f"urn:carrel:problem:{kind}"), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in problem["detail"]
    assert remedy in problem["remedy"]
    assert rig.store.jobs.active() == []


def test_jobs_are_listed_newest_first_by_page_and_only_ones_own(
    rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client
) -> None:
    digest = rig.upload()
    ids = [submit(ada, digest, name=f"n{number % 2}").json()["id"] for number in range(5)]
    first = ada.get(f"{V1}/jobs", params={"limit": 2}).json()
    second = ada.get(f"{V1}/jobs", params={"limit": 2, "before": first["next"]}).json()
    third = ada.get(f"{V1}/jobs", params={"limit": 2, "before": second["next"]}).json()
    assert [job["id"] for page in (first, second, third) for job in page["jobs"]] == ids[::-1]
    assert third["next"] is None
    assert [job["id"] for job in ada.get(f"{V1}/jobs", params={"name": "n1"}).json()["jobs"]] == [ids[3], ids[1]]
    rig.engine.end(ids[0])
    rig.wait(ids[0], JobState.COMPLETED)
    ended = ada.get(f"{V1}/jobs", params={"state": ["COMPLETED", "FAILED"]}).json()["jobs"]
    assert [job["id"] for job in ended] == [ids[0]]
    assert bob.get(f"{V1}/jobs").json()["jobs"] == []
    assert bob.get(f"{V1}/jobs", params={"owner": "all"}).status_code == 403
    assert len(root.get(f"{V1}/jobs", params={"owner": "all"}).json()["jobs"]) == 5
    assert ada.get(f"{V1}/jobs", params={"limit": 501}).status_code == 422
    assert ada.get(f"{V1}/jobs", params={"before": 2**63}).status_code == 422


def test_a_waiting_job_says_where_it_stands_and_can_be_cancelled(rig: Rig, ada: httpx.Client) -> None:
    digest = rig.upload()
    holder = submit(ada, digest, resources={"gpus": 2}).json()["id"]
    rig.engine.wait_started(holder)
    waiting = submit(ada, digest, resources={"gpus": 1}).json()["id"]
    with ada.stream("GET", f"{V1}/jobs/{waiting}/events", headers={"Accept": "text/event-stream"}) as stream:
        for line in stream.iter_lines():
            if line == "event: queue":
                break
    shown = ada.get(f"{V1}/jobs/{waiting}").json()
    assert shown["queue"]["position"] == 1
    assert shown["queue"]["estimated_start"].endswith(("Z", "+00:00"))
    assert "GPU" in shown["message"]
    cancelled = ada.post(f"{V1}/jobs/{waiting}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "CANCELLED")
    again = ada.post(f"{V1}/jobs/{waiting}/cancel")
    assert (again.status_code, again.json()["state"]) == (202, "CANCELLED")


def test_the_run_is_waited_for_without_a_thread(rig: Rig, ada: httpx.Client) -> None:
    job = submit(ada, rig.upload()).json()["id"]
    assert ada.get(f"{V1}/jobs/{job}/run").status_code == 202
    rig.runs[job] = ("r1", "e1")
    found = ada.get(f"{V1}/jobs/{job}/run", params={"wait": 5}).json()
    assert found == {"run_id": "r1", "experiment_id": "e1", "uri": f"{ada.base_url}/mlflow"}


def test_the_lab_its_machines_and_its_users(rig: Rig, ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    lab = ada.get(f"{V1}/lab").json()
    assert (lab["caller"]["subject"], lab["simulated"], lab["tracking"]) == ("ada", True, "off")
    assert [(qos["name"], qos["default"]) for qos in lab["qos"]] == [("normal", True), ("short", False)]
    assert lab["start_ranges"] is None
    assert root.get(f"{V1}/lab").json()["start_ranges"] == {"starts": 0, "held": 0, "early": 0, "late": 0}
    job = submit(ada, rig.upload(), resources={"gpus": 1}, name="mine").json()["id"]
    rig.engine.run(job)
    rig.wait(job, JobState.RUNNING)
    own, theirs = (http.get(f"{V1}/nodes").json()["nodes"][0] for http in (ada, bob))
    assert (own["cpus"], own["cpus_free"]) == (4, 3)
    assert sorted(device["state"] for device in own["devices"]) == ["free", "held"]
    holder = {view["uuid"]: view["holder"] for view in own["devices"]}
    blank = {view["uuid"]: view["holder"] for view in theirs["devices"]}
    held = next(uuid for uuid, found in holder.items() if found)
    assert holder[held] == {"job_id": job, "name": "mine", "owner": "ada"}
    assert blank[held] == {"job_id": None, "name": None, "owner": None}

    # Pages look again when the end is told, and at no later moment: the GPU is free by then.
    told: list[list[str]] = []

    def look() -> None:
        if ada.get(f"{V1}/jobs/{job}").json()["state"] == "COMPLETED":
            told.append([device["state"] for device in bob.get(f"{V1}/nodes").json()["nodes"][0]["devices"]])

    unsubscribe = rig.lab.subscribe(look)
    rig.engine.end(job)
    rig.wait_for(lambda: bool(told))
    unsubscribe()
    assert told[0] == ["free", "free"]

    assert ada.get(f"{V1}/users").status_code == 403
    made = root.post(f"{V1}/users", json={"name": "eve"})
    assert made.status_code == 201
    token = {"Authorization": f"Bearer {made.json()['token']}"}
    assert root.get(f"{V1}/lab", headers=token).json()["caller"]["name"] == "eve"
    assert root.post(f"{V1}/users/eve/revoke").status_code == 204
    assert root.get(f"{V1}/lab", headers=token).status_code == 401
    assert root.post(f"{V1}/users/nobody/revoke").status_code == 404
    assert {user["subject"] for user in root.get(f"{V1}/users").json()["users"]} == {"root", "ada", "bob", "eve"}


def test_the_shape_of_a_task_is_kept_and_shown(rig: Rig, ada: httpx.Client) -> None:
    digest = rig.upload()
    asked = {"launcher": "torchrun", "resources": {"gpus_per_node": 2}, "parameters": {"who": "Ada"}}
    job = submit(ada, digest, **asked).json()
    shown = ada.get(f"{V1}/jobs/{job['id']}").json()
    assert (shown["launcher"], shown["tasks_per_node"], shown["resources"]["gpus"]) == ("torchrun", 2, 2)
    assert shown["keeps_gpus"] == "", "its processes are paused as one"
    alone = submit(ada, digest, **{**asked, "preemptible": False}).json()["id"]
    assert ada.get(f"{V1}/jobs/{alone}").json()["keeps_gpus"] == "it was submitted with --no-preempt"
    answer = submit(ada, digest, **{**asked, "resources": {"nodes": 2}})
    assert answer.status_code == 422
    assert "asks for 2 nodes, but the lab has 1" in answer.text
    assert "tasks_per_node" in answer.text
    answer = submit(ada, digest, **{**asked, "resources": {"gpus": 1, "gpus_per_node": 2}})
    assert "gpus is 1 and gpus_per_node is 2" in answer.text
    assert "Did you mean" in submit(ada, digest, **{**asked, "launcher": "torchrn"}).text
