from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from parity import checked, write_challenge

from carrel import Client
from support.lab_process import LabProcess, start_lab
from support.small_lab import client

__all__ = ["client"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    """A lab that keeps jobs apart, for all tests of a module."""
    home = tmp_path_factory.mktemp("lab") / "home"
    home.mkdir(mode=0o700)
    (home / "carrel.toml").write_text('isolation = "kernel"\n')
    process = start_lab(home, "--cpus", "8", simulate_gpus=0)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture
def person(lab: LabProcess, client: Client) -> Iterator[Callable[[str], Client]]:
    """Makes a user, and gives a client of theirs."""
    made: list[Client] = []

    def add(name: str) -> Client:
        made.append(Client(url=lab.url, token=client.add_user(name).token))
        return made[-1]

    yield add
    for one in made:
        one.close()


@pytest.fixture
def published(client: Client, tmp_path: Path) -> str:
    """The name of a challenge that is published; the same for all tests of a module."""
    if not any(one.name == "parity" for one in client.challenges().challenges):
        client.keep_challenge(write_challenge(tmp_path / "parity"))
        checked(client)
        client.publish_challenge("parity")
    return "parity"
