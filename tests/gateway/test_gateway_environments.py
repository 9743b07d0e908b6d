"""Named environments through the interface: made while one listens, one's own, shared, and refused with a reason."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_lab import Rig

from carrel.node.environments.named import NamedEnvironments, Work
from carrel.testing.waiting import PATIENCE, wait_until

V1 = "/api/v1/environments"


def make(http: httpx.Client, name: str, **source: object) -> Any:
    """Make an environment; return what the last line says."""
    lines = build(http, V1, {"name": name, **source}, 201)
    assert all(set(line) == {"message"} for line in lines[:-1])
    return lines[-1]


def build(http: httpx.Client, path: str, body: object, status: int) -> list[Any]:
    answer = http.post(path, json=body, timeout=PATIENCE)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/x-ndjson"), answer.text
    return [json.loads(line) for line in answer.text.splitlines() if line]


@pytest.mark.gate
def test_one_is_made_listed_looked_at_and_removed(ada: httpx.Client, bob: httpx.Client) -> None:
    assert ada.get(V1).json() == {"environments": [], "used": 0, "quota": None}
    made = make(ada, "study", requirements=["six==1.17.0"])["environment"]
    assert (made["name"], made["owner"], made["kind"], made["source"]) == ("study", "ada", "own", "requirements.txt")
    assert [lock["how"] for lock in made["locks"]] == ["made"]
    listed = ada.get(V1).json()
    assert [view["name"] for view in listed["environments"]] == ["study"]
    assert listed["used"] == listed["environments"][0]["size"] > 0
    lock = ada.get(f"{V1}/study/lock").json()
    assert lock["digest"] == made["locks"][0]["digest"]
    assert "six==1.17.0" in lock["text"]
    assert "ipykernel==" in lock["text"]
    assert ada.get(f"{V1}/study/lock", params={"lock": lock["digest"][7:19]}).json()["text"] == lock["text"]
    assert ada.get(f"{V1}/study").json() == made
    assert bob.get(f"{V1}/study").status_code == bob.get(f"{V1}/ada/study").status_code == 404
    assert bob.delete(f"{V1}/study").status_code == bob.delete(f"{V1}/ada/study").status_code == 404
    assert ada.post(V1, json={"name": "study"}).status_code == 409
    assert ada.delete(f"{V1}/study").status_code == 204
    assert ada.get(f"{V1}/study").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"name": "../x"}, 404, "../x"),
        ({"name": "X"}, 422, "cannot be the name"),
        ({"name": "lock"}, 422, "cannot be the name"),
        ({"name": "x", "requirements": ["six"], "project": {}}, 422, "requirements and project"),
        ({"name": "x", "requirements": ["-e ./here"]}, 422, "not in the project"),
        ({"name": "x", "requirements": ["-r more.txt"]}, 422, "more.txt"),
        ({"name": "x", "requirements": ["https://me:pw@host/x.whl"]}, 422, "password"),
        ({"name": "x", "project": {"setup.py": ""}}, 422, "setup.py"),
        ({"name": "x", "project": {"uv.lock": ""}}, 422, "pyproject.toml"),
        ({"name": "x", "files": {"c.txt": ""}}, 422, "files go with"),
        ({"name": "x", "source": "nothing"}, 404, "nothing"),
        ({"name": "x", "source": "y", "python": "3.11"}, 422, "does not go with"),
        ({"name": "x", "path": "/usr"}, 403, "by its path"),
        ({"name": "site/x"}, 403, "administrators"),
        ({"name": "bob/x"}, 404, "bob/x"),
        ({"name": "x", "pyhton": "3.11"}, 422, "python"),
    ],
)
def test_what_is_wrong_is_refused_at_once(ada: httpx.Client, body: dict[str, object], status: int, words: str) -> None:
    answer = ada.post(V1, json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.text
    assert ada.get(V1).json()["environments"] == []


def test_what_goes_wrong_later_is_the_last_line(ada: httpx.Client) -> None:
    said = make(ada, "study", requirements=["no-such-package-anywhere-xyz==9.9"])
    assert said["problem"]["type"] == "urn:carrel:problem:environment_failed"
    assert "no-such-package-anywhere-xyz" in said["problem"]["detail"]
    old = make(ada, "study", python="3.1")
    assert "3.1" in old["problem"]["detail"]
    assert ada.get(V1).json()["environments"] == []


def test_a_project_and_a_copy_and_a_path(root: httpx.Client, ada: httpx.Client, tmp_path: Path) -> None:
    project = '[project]\nname = "study"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["six<1.17"]\n'
    made = make(ada, "study", project={"pyproject.toml": project})["environment"]
    assert "six==1.16.0" in ada.get(f"{V1}/study/lock").json()["text"]
    twin = make(ada, "twin", source="study")["environment"]
    assert twin["locks"][0]["digest"] == made["locks"][0]["digest"]
    refused = make(root, "mine", path=str(tmp_path))
    assert "bin/python" in refused["problem"]["detail"]
    found = make(root, "mine", path=made["path"])["environment"]
    assert (found["kind"], found["path"]) == ("reference", made["path"])


def test_sharing(ada: httpx.Client, bob: httpx.Client, root: httpx.Client) -> None:
    make(ada, "study")
    unknown = ada.post(f"{V1}/study/share", json={"with": ["nobody"]})
    assert (unknown.status_code, "nobody" in unknown.text) == (404, True)
    assert bob.post(f"{V1}/ada/study/share", json={"with": "all"}).status_code == 404
    assert ada.post(f"{V1}/study/share", json={"with": ["bob"]}).json()["shared_with"] == ["bob"]
    (seen,) = bob.get(V1).json()["environments"]
    assert (seen["name"], seen["owner"], seen["shared_with"]) == ("ada/study", "ada", [])
    assert bob.get(f"{V1}/ada/study/lock").status_code == 200
    assert bob.get(V1).json()["used"] == 0
    assert root.get(V1).json()["environments"] == []
    assert ada.post(f"{V1}/study/share", json={"with": "all"}).json()["shared_with"] == ["all"]
    assert len(root.get(V1).json()["environments"]) == 1
    assert ada.post(f"{V1}/study/share", json={"with": []}).json()["shared_with"] == []
    assert bob.get(f"{V1}/ada/study").status_code == 404


def test_going_back(rig: Rig, ada: httpx.Client) -> None:
    made = make(ada, "study")["environment"]
    refused = ada.post(f"{V1}/study/restore", json={})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:carrel:problem:conflict")
    python = f"{made['path']}/bin/python"
    done = subprocess.run([python, "-m", "pip", "install", "-q", "six"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    changed = ada.get(f"{V1}/study").json()
    assert [lock["how"] for lock in changed["locks"]] == ["made", "installed"]
    last = build(ada, f"{V1}/study/restore", {"lock": made["locks"][0]["digest"][:20]}, 200)[-1]
    assert [lock["how"] for lock in last["environment"]["locks"]] == ["made", "installed", "restored"]
    assert "six" not in ada.get(f"{V1}/study/lock").json()["text"]


def test_who_hangs_up_ends_the_build(rig: Rig, ada: httpx.Client) -> None:
    """The second build begins when the first is gone: both need the same name."""
    environments = NamedEnvironments(rig.home / "environments")
    entered, leave = threading.Event(), threading.Event()

    def hold_the_name() -> None:
        from carrel.node.environments.named.holding import changing

        with changing(environments.layout.place("ada", "study"), Work(report=print)):
            entered.set()
            leave.wait(PATIENCE)

    thread = threading.Thread(target=hold_the_name)
    thread.start()
    assert entered.wait(PATIENCE)
    try:
        with ada.stream("POST", V1, json={"name": "study"}) as answer:
            first = next(answer.iter_lines())
            assert "waiting" in json.loads(first)["message"]
        wait_until(
            lambda: not any(thread.name == "environment" for thread in threading.enumerate()),
            "the end of the build, to which nobody listens",
        )
    finally:
        leave.set()
        thread.join(PATIENCE)
    assert ada.get(V1).json()["environments"] == []
    assert make(ada, "study")["environment"]["name"] == "study"
