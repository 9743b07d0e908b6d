from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import Client
from carrel.testing.lab_process import LabProcess, start_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
    process = start_lab(tmp_path_factory.mktemp("executor") / "home", "--cpus", "8", simulate_gpus=2)
    yield process
    process.end_jobs()
    process.stop()


@pytest.fixture
def client(lab: LabProcess) -> Iterator[Client]:
    with Client(url=lab.url, token=lab.token) as client:
        yield client


@pytest.fixture
def flags(tmp_path: Path) -> Path:
    """Where calls say that they have begun, and are told to go on."""
    return tmp_path
