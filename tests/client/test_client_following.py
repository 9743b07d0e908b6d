"""Waiting and following with `carrel.Client`, also while the lab is killed and started again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from carrel import Client
from carrel.client.following import Position
from carrel.core.domain.errors import Unavailable
from carrel.testing.waiting import PATIENCE
from carrel.wire.v1 import EventView
from support.lab_process import LabProcess, start_lab


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def labs(home: Path) -> Iterator[list[LabProcess]]:
    """The lab, as a list so that a test can put another process into its place."""
    running = [start_lab(home)]
    yield running
    with Client(home=home) as client:
        for job in client.jobs(limit=None):
            if not job.ended:
                client.cancel(job.id)
                client.wait(job.id, timeout=PATIENCE)
    running[0].stop()


@pytest.fixture
def client(labs: list[LabProcess], home: Path) -> Iterator[Client]:
    with Client(home=home) as client:
        yield client


def task(tmp_path: Path, text: str) -> Path:
    directory = tmp_path / "code"
    directory.mkdir(exist_ok=True)
    (directory / "task.sh").write_text(text)
    return directory / "task.sh"


@pytest.mark.gate
def test_wait_gives_up_in_time_although_nothing_happens(client: Client, tmp_path: Path) -> None:
    job = client.submit_project(str(task(tmp_path, "exec sleep 60\n")))
    for event in client.events(job.id):
        if event.data.get("state") == "RUNNING":
            break
    with pytest.raises(Unavailable, match="still RUNNING"):
        client.wait(job.id, timeout=1.0)
    assert list(client.events(job.id, timeout=5))[-1].data["state"] == "RUNNING"


def test_wait_returns_when_the_job_ends(client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = client.submit_project(str(task(tmp_path, f"until [ -e {gate} ]; do sleep 0.05; done; exit 4\n")))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.wait, job.id, timeout=PATIENCE)
        assert not waiting.done()
        gate.touch()
        assert waiting.result(PATIENCE).exit_code == 4


def test_a_stream_goes_on_where_it_was_when_the_lab_comes_back_elsewhere(
    client: Client, labs: list[LabProcess], home: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    # U+2028 ends a line for Python, but not in an event stream.
    text = f"for i in 1 2 3; do printf 'a%s\\342\\200\\250b\\n' $i; done; until [ -e {gate} ]; do sleep 0.05; done; echo last\n"
    job = client.submit_project(str(task(tmp_path, text)))
    seen: list[str] = []
    early = threading.Event()

    def follow() -> None:
        for piece in client.stream_log(job.id):
            seen.append(piece)
            if "a3" in "".join(seen):
                early.set()

    with ThreadPoolExecutor() as pool:
        following = pool.submit(follow)
        assert early.wait(PATIENCE)
        before = labs[0].url
        labs[0].kill()
        # Somebody else has its port now: it would come back there otherwise.
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", int(before.rpartition(":")[2])))
            taken.listen()
            labs[0] = start_lab(home)
        assert labs[0].url != before
        gate.touch()
        following.result(PATIENCE)
    assert "".join(seen) == "a1\u2028b\na2\u2028b\na3\u2028b\nlast\n"
    assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
    assert client.url == labs[0].url


def test_all_of_a_long_log_arrives_once(client: Client, tmp_path: Path) -> None:
    job = client.submit_project(str(task(tmp_path, "seq -f 'ligne é %.0f' 60000\n")))
    text = "".join(client.stream_log(job.id))
    assert text == "".join(f"ligne é {number}\n" for number in range(1, 60001))
    assert b"".join(client.log(job.id)).decode() == text


def test_a_lab_that_is_gone_for_good_is_not_waited_for(labs: list[LabProcess], home: Path, tmp_path: Path) -> None:
    with Client(home=home, patience=0.5) as impatient:
        job = impatient.submit_project(str(task(tmp_path, "exec sleep 60\n")))
        labs[0].kill()
        try:
            with pytest.raises(Unavailable, match="does not answer"):
                impatient.wait(job.id)
            with pytest.raises(Unavailable, match="does not answer"):
                list(impatient.events(job.id))
        finally:
            labs[0] = start_lab(home)
        assert not impatient.job(job.id).ended


def message(number: int, offset: int, *, text: str = "x") -> str:
    at = "2026-01-01T00:00:00Z"
    return EventView.model_validate(
        {"id": number, "at": at, "job_id": 1, "type": "log", "data": {"attempt": 1, "offset": offset, "text": text}}
    ).model_dump_json()


def test_pieces_that_come_again_are_left_out() -> None:
    position = Position(0, 1)
    first = [("", message(5, 0)), ("", message(5, 100))]
    again = [("", message(5, 0)), ("", message(5, 100)), ("5", message(5, 200))]
    shown = [event.data["offset"] for event_id, data in first for event in position.take(event_id, data)]
    assert position.after == 0, "the event was not whole: it has to be asked for again"
    shown += [event.data["offset"] for event_id, data in again for event in position.take(event_id, data)]
    assert shown == [0, 100, 200]
    assert position.after == 5
