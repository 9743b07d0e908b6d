"""What a command gets of its owner's secrets, and where they must not be left."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from carrel.core.domain.job import JobState
from carrel.core.domain.launch import Launch, Preparing
from carrel.core.domain.task import InputSpec
from carrel.testing.builders import AttemptEvents

VALUE = "correct-horse-battery-staple"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\n-----END KEY-----"


@dataclass
class Gateway:
    """The lab's address, which answers for secrets as the test wants it."""

    status: int = 200
    answer: Mapping[str, Any] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    url: str = ""
    #: The next answers are 503.
    down: int = 0


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    known = Gateway(answer={"secrets": {"API_KEY": VALUE, "PEM": KEY}})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.tokens.append(self.headers["Authorization"])
            status, known.down = (503, known.down - 1) if known.down else (known.status, 0)
            body = json.dumps(known.answer).encode()
            self.send_response(status if self.path.endswith("/secrets") else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    known.url = f"http://127.0.0.1:{server.server_port}"
    yield known
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def start(lab: Any, gateway: Gateway) -> Callable[..., Launch]:
    def begin(command: str, **task: Any) -> Launch:
        launch: Launch = lab.start(command, gateway=gateway.url, task={"secrets": ("API_KEY", "PEM"), **task})
        return launch

    return begin


def log_of(lab: Any, launch: Launch) -> bytes:
    content: bytes = lab.log(launch).read_bytes()
    return content


@pytest.mark.gate
def test_the_command_has_them_and_no_file_does(lab: Any, gateway: Gateway, start: Callable[..., Launch]) -> None:
    launch = start('echo "so: ${#API_KEY} ${#PEM}"; echo "key $API_KEY end"; printf "%s" "$PEM"')
    assert lab.ended(launch).state is JobState.COMPLETED
    log = log_of(lab, launch)
    assert f"so: {len(VALUE)} {len(KEY)}".encode() in log
    assert b"key ******** end" in log
    assert b"MIIEvQIBADANBgkq" not in log
    assert gateway.tokens == ["Bearer carrel-test-token-0123456789"]
    for directory, _, names in os.walk(lab.home.root):  # what its runner removes meanwhile is passed over
        for path in (Path(directory, name) for name in names):
            with suppress(FileNotFoundError):
                assert path.is_symlink() or not path.is_file() or VALUE.encode() not in path.read_bytes(), path


def test_its_inputs_are_staged_with_them(lab: Any, gateway: Gateway, start: Callable[..., Launch], tmp_path: Path) -> None:
    """A file system library looks for its keys in the environment; this setting of fsspec's shows that it found one."""
    source, cache = tmp_path / "data.csv", tmp_path / "cache"
    source.write_text("1,2\n")
    name = "FSSPEC_SIMPLECACHE_CACHE_STORAGE"
    gateway.answer = {"secrets": {name: str(cache)}}
    launch = start("cat data.csv", secrets=(name,), inputs=(InputSpec(path="data.csv", uri=f"simplecache::file://{source}"),))
    assert lab.ended(launch).state is JobState.COMPLETED
    assert b"1,2" in log_of(lab, launch)
    assert [path.read_text() for path in cache.iterdir()] == ["1,2\n"]


def test_it_waits_for_a_lab_that_is_down_and_says_so(lab: Any, gateway: Gateway, start: Callable[..., Launch]) -> None:
    gateway.down = 2
    launch = start('echo "${#API_KEY}"')
    assert lab.ended(launch).state is JobState.COMPLETED
    assert b"28" in log_of(lab, launch)
    story: AttemptEvents = lab.listener.story(launch)
    assert any(isinstance(record, Preparing) and "which keeps the secret API_KEY" in record.message for record in story.records)


def test_one_that_was_removed_ends_the_job_before_its_command(lab: Any, gateway: Gateway, start: Callable[..., Launch]) -> None:
    gateway.status, gateway.answer = 404, {"detail": "The secret API_KEY was removed.", "remedy": "Set it."}
    launch = start("echo never")
    ended = lab.ended(launch)
    assert ended.state is JobState.FAILED
    assert ended.reason.code == "InputFailed"
    assert "The secret API_KEY was removed." in ended.reason.message
    assert b"never" not in log_of(lab, launch)


def test_nothing_is_asked_for_a_job_that_names_none(lab: Any, gateway: Gateway, start: Callable[..., Launch]) -> None:
    assert lab.ended(start("true", secrets=())).state is JobState.COMPLETED
    assert gateway.tokens == []
