"""Fixtures of a small lab without tracking: one for each module of tests.

A `conftest.py` has `lab = small_lab(gpus=2)` and imports `client`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from carrel import Client
from support.lab_process import LabProcess, start_lab

CPUS = 8


def small_lab(*, gpus: int) -> Any:
    """Return a fixture: a lab with so many simulated GPUs, which runs for all tests of a module. Its jobs end with it."""

    @pytest.fixture(scope="module")
    def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabProcess]:
        process = start_lab(tmp_path_factory.mktemp("lab") / "home", "--cpus", str(CPUS), simulate_gpus=gpus)
        yield process
        process.end_jobs()
        process.stop()

    return lab


@pytest.fixture
def client(lab: LabProcess) -> Iterator[Client]:
    """A client of the module's lab, with the administrator's token."""
    with Client(url=lab.url, token=lab.token) as client:
        yield client
