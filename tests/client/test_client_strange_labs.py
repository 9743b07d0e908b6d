"""What a client does with a lab that loses answers, lies, or is no lab at all; and which way it goes there."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from carrel import Client
from carrel.core.domain.errors import CarrelError, Invalid, NotFound, Unavailable
from carrel.wire.v1 import JobView, TaskRequest

JOB = JobView.model_validate(
    {
        "id": 1,
        "kind": "task",
        "owner": "me",
        "account": "default",
        "name": "n",
        "qos": "normal",
        "state": "PENDING",
        "reason": "Submitted",
        "message": "",
        "resources": {"cpus": 1, "memory": 1, "gpus": 0, "time": 1},
        "submitted_at": "2026-01-01T00:00:00Z",
    }
).model_dump_json()
CONTENT = b"content\n"


class StrangeLab(BaseHTTPRequestHandler):
    """Loses the first answer to a submission; names outputs as it is told."""

    protocol_version = "HTTP/1.1"
    server: Strange

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.server.asked.append(self.command)
        self._answer(200 if self.server.codes else 404, b"")

    def do_PUT(self) -> None:
        self.server.asked.append(self.command)
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + 2)
        self.rfile.readline()
        self.server.codes.add(self.path)
        self._answer(201, b"{}")

    def do_POST(self) -> None:
        self.server.asked.append(self.command)
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.append(self.headers["Idempotency-Key"])
        if request["snapshot"] != "sha256:0" and not self.server.codes:
            problem = {"type": "urn:carrel:problem:not_found", "title": "", "status": 404, "detail": "No code.", "remedy": ""}
            self._answer(404, json.dumps(problem).encode())
            return
        if len(self.server.keys) == 1:
            self.close_connection = True
            return
        self._answer(201, JOB.encode())

    def do_GET(self) -> None:
        if self.path.endswith("/outputs"):
            self._answer(200, json.dumps({"outputs": [self.server.output]}).encode())
        elif "/outputs/" in self.path:
            self._answer(200, CONTENT)
        elif self.path.endswith("/jobs/404"):
            problem = {"type": "urn:carrel:problem:not_found", "title": "", "status": 404, "detail": "No job.", "remedy": "Look."}
            self._answer(404, json.dumps({**problem, "details": {"a": 1}}).encode())
        else:
            self._answer(502, b"<html>a proxy's page</html>")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Strange(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StrangeLab)
        self.keys: list[str] = []
        self.asked: list[str] = []
        self.codes: set[str] = set()
        self.output = {"path": "r", "size": len(CONTENT), "digest": f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"}


@pytest.fixture
def strange() -> Iterator[Strange]:
    with Strange() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(strange: Strange) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{strange.server_port}", "token") as client:
        yield client


def test_a_lost_answer_is_asked_for_again_with_the_same_key(client: Client, strange: Strange) -> None:
    assert client.submit(TaskRequest(snapshot="sha256:0")).id == 1
    assert len(strange.keys) == 2
    assert strange.keys[0] == strange.keys[1] != ""


def test_code_that_is_there_is_not_asked_about_again_and_sent_when_it_was_thrown_away(
    client: Client, strange: Strange, tmp_path: Path
) -> None:
    (tmp_path / "MLproject").write_text("name: p\nentry_points:\n  main:\n    command: 'true'\n")
    strange.keys.append("")  # no answer is lost
    for asked in (["HEAD", "PUT", "POST"], ["POST"], ["POST"]):
        strange.asked.clear()
        client.submit_project(tmp_path)
        assert strange.asked == asked
    strange.codes.clear()
    strange.asked.clear()
    client.submit_project(tmp_path)
    assert strange.asked == ["POST", "HEAD", "PUT", "POST"]
    assert strange.keys[-1] == strange.keys[-2]
    strange.codes.clear()
    (tmp_path / "MLproject").write_text("name: q\nentry_points:\n  main:\n    command: 'true'\n")
    client.submit_project(tmp_path)


@pytest.mark.parametrize("path", ["../r", "/r", "a/../../r", "", "a\0b"])
def test_an_output_never_leaves_the_directory(client: Client, strange: Strange, tmp_path: Path, path: str) -> None:
    strange.output["path"] = path
    with pytest.raises(CarrelError, match="not below"):
        client.download_outputs(1, tmp_path / "in" / "here")
    assert not list(tmp_path.rglob("r"))


def test_an_output_that_does_not_arrive_whole_replaces_nothing(client: Client, strange: Strange, tmp_path: Path) -> None:
    (tmp_path / "r").write_text("before")
    strange.output["digest"] = f"sha256:{'0' * 64}"
    with pytest.raises(Unavailable, match="did not arrive whole"):
        client.download_outputs(1, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("r", "before")]


def test_problems_become_the_errors_that_they_are(client: Client) -> None:
    with pytest.raises(NotFound) as caught:
        client.job(404)
    assert (caught.value.message, caught.value.remedy, caught.value.details) == ("No job.", "Look.", {"a": 1})
    with pytest.raises(Unavailable, match="not as a lab does"):
        client.lab()


def test_a_proxy_does_not_stand_between_a_user_and_a_lab_on_the_same_machine(
    strange: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Client(f"http://127.0.0.1:{strange.server_port}", "token") as client:
        assert [output.path for output in client.outputs(1)] == ["r"]


def test_a_directory_that_cannot_be_written_is_said(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid, match="cannot be written"):
        client.download_outputs(1, tmp_path / "file")
