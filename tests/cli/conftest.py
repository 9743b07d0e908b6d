from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine

from carrel.client import Client
from carrel.testing.waiting import PATIENCE
from support.lab_process import LabProcess, start_lab

SETTINGS = 'grace_time = "2m"\nwarning_time = "1s"\n'


@pytest.fixture(scope="session")
def lab_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("lab") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text(SETTINGS)
    return home


@pytest.fixture(scope="session")
def lab(lab_home: Path) -> Iterator[LabProcess]:
    """A lab with two simulated GPUs. Whatever a test leaves running is cancelled at the end."""
    # Not forked: doctor knows labs by their command line.
    running = start_lab(lab_home, "--cpus", "4", simulate_gpus=2, python=(sys.executable,))
    yield running
    with Client(home=lab_home) as client:
        left = [client.cancel(job.id).id for job in client.jobs("all", limit=None) if not job.ended]
        for job_id in left:
            client.wait(job_id, timeout=PATIENCE)
    running.stop()


@pytest.fixture
def carrel(lab: LabProcess, lab_home: Path) -> CommandLine:
    """The command line of the lab's administrator."""
    return CommandLine({"CARREL_HOME": str(lab_home)})


@pytest.fixture
def client(lab: LabProcess, lab_home: Path) -> Iterator[Client]:
    with Client(home=lab_home) as client:
        yield client


@pytest.fixture
def other(lab: LabProcess, carrel: CommandLine, request: pytest.FixtureRequest) -> CommandLine:
    """The command line of another user, on another machine."""
    token = carrel("user", "add", f"user-{request.node.name[:40]}", "--json").json["token"]
    return CommandLine({"CARREL_URL": lab.url, "CARREL_TOKEN": token, "CARREL_HOME": "/nonexistent"})
