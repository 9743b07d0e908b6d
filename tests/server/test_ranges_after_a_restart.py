"""How often ranges of start times held is known after a server was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess, start_lab
from support.ports import kept_port

PROJECT = """
name: nap
entry_points:
  main:
    parameters: {seconds: float, go: string}
    command: "until test -e {go}; do sleep 0.05; done; sleep {seconds}"
"""


@pytest.fixture
def port() -> Iterator[int]:
    with kept_port() as number:
        yield number


def start(home: Path, port: int) -> LabProcess:
    return start_lab(home, "--port", str(port), simulate_gpus=1)


def test_what_was_shown_and_how_it_turned_out_is_kept(tmp_path: Path, port: int) -> None:
    directory = tmp_path / "nap"
    directory.mkdir()
    (directory / "MLproject").write_text(PROJECT)

    def submit(client: Client, seconds: float, go: Path) -> int:
        parameters = {"seconds": str(seconds), "go": str(go)}
        return client.submit_project(directory, parameters=parameters, resources={"gpus": 1}).id

    lab = start(tmp_path / "lab", port)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            for seconds in (0.1, 0.2, 0.1, 0.2):
                client.wait(submit(client, seconds, tmp_path), timeout=PATIENCE)
            jobs = [submit(client, 0.1, tmp_path / "go") for _ in range(4)]
            wait_until(lambda: (queue := client.job(jobs[-1]).queue) is not None and queue.estimated_range is not None)
            (tmp_path / "go").touch()
            for job in jobs:
                client.wait(job, timeout=PATIENCE)
            before = wait_until(lambda: client.lab().start_ranges)
        assert before.starts >= 1
        lab.kill()
        lab = start(tmp_path / "lab", port)
        with Client(url=lab.url, token=lab.token) as client:
            assert client.lab().start_ranges == before
    finally:
        lab.stop()
