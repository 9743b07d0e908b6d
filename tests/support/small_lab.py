"""A small lab without tracking: as a fixture for each module of tests, or as one that a test kills and starts again.

A `conftest.py` has `lab = small_lab(gpus=2)` and imports `client`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire import v1
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


class MortalLab:
    """A lab that can be killed and started again, and its administrator's client. Its tasks are scripts of a few lines."""

    def __init__(self, home: Path, *options: str, rules: str = "", **more: Any) -> None:
        """`rules` are its file of settings; `options` and `more` are those of `start_lab`."""
        self.home, self._options, self._more = home, options, {"simulate_gpus": 0, **more}
        if rules:
            home.mkdir(mode=0o700)
            (home / "carrel.toml").write_text(rules)
        self.start()

    def start(self) -> None:
        """Start it, at the address that it had."""
        self.process = start_lab(self.home, *self._options, **self._more)
        self.client = Client(url=self.process.url, token=self.process.token)

    def kill(self) -> None:
        """SIGKILL: what nobody has told it yet stays untold."""
        self.client.close()
        self.process.kill()

    def kill_and_restart(self) -> None:
        """Kill the server, and start the next one."""
        self.kill()
        self.start()

    def stop(self) -> None:
        """End all jobs, and the lab."""
        self.process.end_jobs()
        self.client.close()
        self.process.stop()

    def submit(self, script: str, **more: Any) -> v1.JobView:
        """Submit this script, with little memory unless `resources` say otherwise."""
        work = self.home.parent / "work" / "work.sh"
        work.parent.mkdir(exist_ok=True)
        work.write_text(script)
        return self.client.submit_project(work, **{"resources": v1.ResourceRequest(memory="64M"), **more})

    def until(self, job_id: int, happened: Callable[[v1.JobDetail], bool]) -> v1.JobDetail:
        """Wait until something is true of a job."""
        found = wait_until(lambda: job if happened(job := self.client.job(job_id)) else None, lambda: self.client.job(job_id))
        assert found is not None
        return found

    def ended(self, job_id: int) -> v1.JobDetail:
        """Wait for the end of a job."""
        return self.client.wait(job_id, timeout=PATIENCE)

    def log(self, job_id: int, attempt: int | None = None) -> str:
        """Return what a job has said so far."""
        return b"".join(self.client.log(job_id, attempt=attempt)).decode()
