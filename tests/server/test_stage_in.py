"""Inputs that lie elsewhere are fetched before their job has a GPU, once for whoever wants the same, and whatever is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.core.spool import read_claim
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.lab_process import LabProcess, start_lab
from support.ports import kept_port

GPU = ResourceRequest(gpus=1)


class Store:
    """A web server that answers when it is told to, and says nothing by which one content is told from another."""

    def __init__(self) -> None:
        #: Requests that came, and those that were answered, by path.
        self.asked: Counter[str] = Counter()
        self.open = threading.Event()
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                store.asked[self.path] += 1
                store.open.wait(PATIENCE)
                there = not self.path.startswith("/missing")
                body = self.path.encode() if there else b""
                self.send_response(200 if there else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    thread = threading.Thread(target=store.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield store
    store.open.set()
    store.server.shutdown()
    thread.join()
    store.server.server_close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def lab(home: Path) -> Iterator[LabProcess]:
    """One GPU."""
    with kept_port() as port:
        lab = start_lab(home, "--port", str(port), simulate_gpus=1)
        yield lab
        lab.stop()


@pytest.fixture
def client(lab: LabProcess, home: Path) -> Iterator[Client]:
    with Client(home=home) as client:
        yield client


def project(directory: Path, *inputs: str, command: str = "cat in0", more: str = "") -> Path:
    directory.mkdir()
    named = ", ".join(f'in{number}: "{uri}"' for number, uri in enumerate(inputs))
    (directory / "MLproject").write_text(
        f'name: t\nentry_points:\n  main:\n    command: "{command}"\ncarrel:\n  inputs: {{{named}}}\n{more}'
    )
    return directory


def ended(client: Client, job_id: int) -> tuple[JobDetail, str]:
    job = client.wait(job_id, timeout=PATIENCE)
    return job, b"".join(client.log(job_id)).decode()


@pytest.mark.gate
def test_nobody_holds_a_gpu_while_data_come(client: Client, store: Store, tmp_path: Path) -> None:
    waits = client.submit_project(project(tmp_path / "a", f"{store.url}/data"), resources=GPU)
    wait_until(lambda: store.asked["/data"] == 1)
    told = wait_until(lambda: job if "fetching the input in0" in (job := client.job(waits.id)).message else None)
    assert (told.state, told.reason, told.attempt) == ("PENDING", "StageIn", 0)
    other = client.submit_project(project(tmp_path / "b", command="echo here"), resources=GPU)
    assert ended(client, other.id)[0].state == "COMPLETED"
    assert client.job(waits.id).state == "PENDING"
    store.open.set()
    job, log = ended(client, waits.id)
    assert (job.state, log) == ("COMPLETED", "/data")
    assert store.asked["/data"] == 1  # what was fetched is what it gets, although the store does not say what changed
    (attempt,) = client.record(waits.id)["attempts"]
    assert attempt["inputs"]["in0"].startswith("sha256:")


def test_what_is_not_there_is_said_at_once(client: Client, store: Store, tmp_path: Path) -> None:
    holder = client.submit_project(project(tmp_path / "h", command="sleep 600"), resources=GPU)
    wait_until(lambda: client.job(holder.id).state == "RUNNING")
    store.open.set()
    job = client.wait(client.submit_project(project(tmp_path / "a", f"{store.url}/missing"), resources=GPU).id, timeout=PATIENCE)
    assert (job.state, job.reason, job.attempt) == ("FAILED", "InputFailed", 0)
    assert "404" in job.message
    tried = client.submit_project(project(tmp_path / "r", f"{store.url}/missing"), resources=GPU, retries=1)
    wait_until(lambda: client.job(tried.id).reason in ("Resources", "Priority"))  # its attempts try again
    client.cancel(holder.id)
    assert client.wait(tried.id, timeout=PATIENCE).attempt == 2


def test_the_jobs_of_a_sweep_fetch_once(client: Client, store: Store, tmp_path: Path) -> None:
    code = project(tmp_path / "a", f"{store.url}/data")
    jobs = [client.submit_project(code, resources=GPU) for _ in range(3)]
    wait_until(lambda: store.asked["/data"] == 1)
    wait_until(lambda: f"the same as those of job {jobs[0].id}," in client.job(jobs[2].id).message)
    client.cancel(jobs[0].id)  # another one goes on with it
    wait_until(lambda: store.asked["/data"] == 2)
    store.open.set()
    assert [ended(client, job.id)[0].state for job in jobs] == ["CANCELLED", "COMPLETED", "COMPLETED"]
    late = client.submit_project(code, resources=GPU)
    assert ended(client, late.id)[0].state == "COMPLETED"
    assert store.asked["/data"] == 2


def test_a_killed_server_finds_its_fetches_again(lab: LabProcess, home: Path, store: Store, tmp_path: Path) -> None:
    with Client(home=home) as client:
        job = client.submit_project(project(tmp_path / "a", f"{store.url}/data"), resources=GPU)
    wait_until(lambda: store.asked["/data"] == 1)
    lab.kill()
    store.open.set()
    again = start_lab(home, "--port", lab.url.rpartition(":")[2], simulate_gpus=1)
    try:
        with Client(home=home) as client:
            found, log = ended(client, job.id)
        assert (found.state, log, found.attempt) == ("COMPLETED", "/data", 1)
        assert store.asked["/data"] == 1
    finally:
        again.stop()


def test_a_fetch_is_given_the_secrets_of_its_job(client: Client, store: Store, tmp_path: Path) -> None:
    client.set_secret("KEY", "open-sesame")
    store.open.set()
    code = project(tmp_path / "a", f"{store.url}/data", command="cat in0; echo -n $KEY | wc -c", more="  secrets: [KEY]\n")
    job, log = ended(client, client.submit_project(code, resources=GPU).id)
    assert (job.state, log.split()) == ("COMPLETED", ["/data11"])
    assert store.asked["/data"] == 1
    client.remove_secret("KEY")


def test_a_fetch_whose_runner_is_killed_is_made_in_the_jobs_place(
    client: Client, home: Path, store: Store, tmp_path: Path
) -> None:
    job = client.submit_project(project(tmp_path / "a", f"{store.url}/data"), resources=GPU)
    wait_until(lambda: store.asked["/data"] == 1)
    claim = read_claim(home / "spool" / str(job.id) / "0" / "claim")
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    wait_until(lambda: client.job(job.id).attempt == 1)
    store.open.set()
    found, log = ended(client, job.id)
    assert (found.state, log, found.attempt) == ("COMPLETED", "/data", 1)


def test_what_cannot_be_kept_is_fetched_when_its_job_has_its_place(home: Path, store: Store, tmp_path: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('input_cache = "2K"\n')
    store.open.set()
    lab = start_lab(home, simulate_gpus=1)
    try:
        with Client(home=home) as client:
            long = "/" + 3000 * "x"
            job, log = ended(client, client.submit_project(project(tmp_path / "a", f"{store.url}{long}"), resources=GPU).id)
        assert (job.state, log) == ("COMPLETED", long)
        assert store.asked[long] == 2
        wait_until(lambda: not list((home / "inputs").glob("*/arriving/*")))
    finally:
        lab.stop()
