"""Tasks as a record has them: taken as they are, and checked as what a file says is; and the code and metrics of a crate."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from gateway_lab import V1, Rig

HASH = f"    --hash=sha256:{'a' * 64}"
LOCK = f"idna==3.10 \\\n{HASH}\n"
FILES = {"train.py": "print(1)\n", "requirements.txt": "idna\n", "sub/x": ""}


def replay(http: httpx.Client, digest: str, *, entry_point: str = "train.py", more: Any = None, **fields: Any) -> httpx.Response:
    said = {"lab": "2d23d8fa769d", "job": 12, "name": "digits", "command": "python train.py --lr 0.1 'a b'", **fields}
    body = {"snapshot": digest, "entry_point": entry_point, "parameters": {"lr": "0.1"}, "replay": said, **(more or {})}
    return http.post(f"{V1}/jobs", json=body)


def task(http: httpx.Client, answer: httpx.Response) -> Any:
    assert answer.status_code == 201, answer.text
    return http.get(f"{V1}/jobs/{answer.json()['id']}/record").json()["task"]


@pytest.mark.gate
def test_what_was_decided_is_what_runs(rig: Rig, ada: httpx.Client) -> None:
    digest = rig.upload(files={**FILES, "MLproject": "name: other\ncarrel: {variables: {A: file}, outputs: [x]}\n"})
    inputs = [{"path": "data/a.csv", "uri": "https://example.org/a.csv", "digest": f"sha256:{'b' * 64}"}]
    staged = {"inputs/table/b.csv": "file:/data/b.csv"}
    answer = replay(ada, digest, inputs=inputs, path_parameters=staged, outputs=["*.csv"], lock=LOCK, python="3.11.7")
    assert answer.json()["name"] == "digits"
    found = task(ada, answer)
    assert found["command"] == "python train.py --lr 0.1 'a b'"
    assert found["parameters"] == {"lr": "0.1"}
    assert (found["inputs"], found["path_parameters"], found["outputs"]) == (inputs, staged, ["*.csv"])
    assert found["variables"] == {}, "what files say besides is in the record's own options"
    assert found["replay_of"] == {"lab": "2d23d8fa769d", "job": 12}
    recipe = found["environment"]
    assert (recipe["lock"], recipe["python"], recipe["requirements"]) == (LOCK, "3.11.7", ["idna"])
    job = answer.json()["id"]
    assert ada.get(f"{V1}/jobs/{job}").json()["replay_of"] == "job 12 of the lab 2d23d8fa769d"


def test_a_job_without_an_environment_gets_none(rig: Rig, ada: httpx.Client) -> None:
    found = task(ada, replay(ada, rig.upload(files=FILES), environment=False, lock=LOCK, python="3.11"))
    assert found["environment"]["kind"] == "none"
    assert not {"lock", "python"} & set(found["environment"])


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"lock": "--index-url https://evil.example\nidna==3.10\n"}, "The lock, line 1"),
        ({"lock": "# \\\n-e /etc\n"}, "The lock, line 1"),
        ({"inputs": [{"path": "../x", "uri": "file:/x"}]}, "is not a place in the working directory"),
        ({"inputs": [{"path": "/x", "uri": "file:/x"}]}, "is not a place in the working directory"),
        ({"inputs": [{"path": "x", "uri": "nothing"}]}, "is not a URI"),
        ({"inputs": [{"path": "x", "uri": "https://me:secret@example.org/x"}]}, "has a password in it"),
        ({"inputs": [{"path": "x", "uri": "file:/x", "digest": "md5:1"}]}, "is not a digest"),
        ({"inputs": [{"path": "x", "uri": "file:/x"}], "path_parameters": {"x/y": "file:/y"}}, "in each other's way"),
        ({"path_parameters": {"../x": "file:/y"}}, "is not a place in the working directory"),
        ({"path_parameters": {"x": "\0"}}, "record"),
        ({"outputs": ["/etc/*"]}, "does not name files in the working directory"),
        ({"outputs": ["../*"]}, "does not name files in the working directory"),
        ({"command": "a\0b"}, "zero byte"),
        ({"entry_point": "a\0b"}, "zero byte"),
        ({"command": ""}, "command"),
        ({"lab": "../x"}, "lab"),
        ({"lab": "x\n"}, "lab"),
        ({"python": "3.11; rm -rf"}, "python"),
        ({"python": "../python"}, "python"),
        ({"job": 0}, "job"),
        ({"name": "a\nb"}, "name"),
        ({"magic": 1}, "magic"),
    ],
)
def test_what_a_file_could_not_say_is_refused(rig: Rig, ada: httpx.Client, fields: dict[str, Any], fact: str) -> None:
    answer = replay(ada, rig.upload(files=FILES), **fields)
    assert answer.status_code == 422, answer.text
    assert fact in answer.text


@pytest.mark.parametrize("more", [{"arguments": ["x"]}, {"script": "train.py"}, {"strict": True}])
def test_what_would_say_nothing_is_refused(rig: Rig, ada: httpx.Client, more: dict[str, Any]) -> None:
    answer = replay(ada, rig.upload(files=FILES), more=more)
    assert (answer.status_code, "A record has the whole command" in answer.text) == (422, True)


def test_pools_and_sweeps_repeat_no_record(rig: Rig, ada: httpx.Client) -> None:
    said = {"lab": "l", "job": 1, "name": "x", "command": "true"}
    task = {"snapshot": rig.upload(files=FILES), "entry_point": "train.py", "replay": said}
    sweep = {"trials": 2, "metric": "loss", "parameters": {"lr": "uniform(0, 1)"}}
    for path, body in (("pools", {"max_workers": 1}), ("sweeps", sweep)):
        answer = ada.post(f"{V1}/{path}", json={**body, "task": task})
        assert (answer.status_code, "repeated as one job" in answer.text) == (422, True), answer.text


def test_code_of_others_is_not_repeated_and_not_shown(rig: Rig, ada: httpx.Client, bob: httpx.Client) -> None:
    digest = rig.upload(files=FILES)
    assert replay(bob, digest).status_code == 404
    assert bob.get(f"{V1}/snapshots/{digest}").status_code == 404
    got = ada.get(f"{V1}/snapshots/{digest}")
    assert got.status_code == 200
    assert got.headers["content-disposition"].startswith("attachment")
    assert bob.put(f"{V1}/snapshots/{digest}", content=got.content).status_code == 201, "what one has, one may send"
    assert replay(bob, digest).status_code == 201
