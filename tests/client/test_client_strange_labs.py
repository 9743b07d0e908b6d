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
from carrel.domain.errors import CarrelError, Invalid, NotFound, Unavailable
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

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(self.headers["Idempotency-Key"])
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
