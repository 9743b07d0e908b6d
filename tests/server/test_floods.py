"""Thousands of programs that connect to a lab and say nothing, from processes beside it; jobs and answers go on."""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from carrel.client import Client
from carrel.core.domain.job import JobState
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess, start_lab

#: Connects so often, says a head that does not end, and goes on as connections are closed, until its standard input ends.
FLOOD = """
import resource, select, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held, again = [], int(sys.argv[2])
while again or not held:
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    held[-1].send(b"GET / HTTP/1.1\\r\\nHost: lab\\r\\nX-Never-Ends: ")
    again -= 1
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "MLproject").write_text("name: beside\nentry_points: {main: {command: 'true'}}\n")
    return tmp_path / "code"


@contextmanager
def flood(port: int, connections: int, processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Programs that hold so many connections; the block begins when they begin."""
    words = [sys.executable, "-I", "-c", FLOOD, str(port), str(connections // processes)]
    started = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        yield started
    finally:
        for one in started:
            one.kill()
            one.communicate()


def health(port: int) -> float:
    """Seconds until the lab has answered."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    return time.monotonic() - began


def held(lab: LabProcess, code: Path, connections: int, processes: int) -> tuple[float, float]:
    """Seconds of a slow answer while that many connections come, and of the slowest while they are held; jobs go on."""
    port = urlsplit(lab.url).port
    assert port is not None
    with Client(home=lab.home) as client, flood(port, connections, processes) as programs:
        coming = []
        for one in programs:
            assert one.stdout is not None
            coming.append(health(port))
            assert one.stdout.readline() == b"held\n"
        holding = [health(port) for _ in range(20)]
        for _ in range(3):
            job = client.submit_project(code)
            assert client.wait(job.id, timeout=PATIENCE).state == JobState.COMPLETED
            holding.append(health(port))
    assert "Too many open files" not in (lab.home / "logs" / "server.log").read_text()
    return max(coming), max(holding)


@pytest.mark.gate
def test_more_connections_than_descriptors_stop_nothing(tmp_path: Path, code: Path) -> None:
    few = ("sh", "-c", 'ulimit -n 400; exec "$0" "$@"', sys.executable)
    lab = start_lab(tmp_path / "lab", python=few)
    try:
        held(lab, code, 1000, 2)
    finally:
        lab.end_jobs()
        lab.stop()


def test_one_user_has_a_part_of_the_event_streams_and_others_have_theirs(tmp_path: Path) -> None:
    lab = start_lab(tmp_path / "lab", variables={"CARREL_CONNECTION_LIMIT": "64"})
    try:
        with ExitStack() as stack, Client(home=lab.home) as client:
            other = client.add_user("alice", without_isolation=True).token
            headers, stream = {"Authorization": f"Bearer {lab.token}"}, {"Accept": "text/event-stream"}
            http = stack.enter_context(httpx.Client(base_url=f"{lab.url}/api/v1", headers=headers, timeout=PATIENCE))
            for _ in range(16):
                assert stack.enter_context(http.stream("GET", "/events", headers=stream)).status_code == 200
            answer = http.get("/lab")
            assert answer.status_code == 429
            assert "16 requests at once" in answer.json()["detail"]
            assert httpx.get(f"{lab.url}/api/v1/lab", headers={"Authorization": f"Bearer {other}"}).status_code == 200
    finally:
        lab.stop()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_twenty_thousand_connections_stop_nothing(tmp_path: Path, code: Path) -> None:
    lab = start_lab(tmp_path / "lab")
    try:
        coming, holding = held(lab, code, 20_000, 4)
        print(f"/health took {coming:.3f} s at most while they came, {holding:.3f} s while they were held")
        assert holding <= 1
    finally:
        lab.end_jobs()
        lab.stop()
