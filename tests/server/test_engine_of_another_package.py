"""An engine that Carrel does not know (tests/engines/tide), installed beside it, runs jobs of a lab."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from carrel import Client
from carrel.domain.errors import Impossible
from carrel.domain.job import JobState
from carrel.testing.lab_process import LabProcess, start_lab
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest

PACKAGE = Path(__file__).parents[1] / "engines" / "tide"
RULES = """
[partitions.here]

[partitions.harbour]
engine = "tide"
tide_quays = "{quays}"
"""


def install(package: Path, site: Path) -> None:
    """What installing does that counts here: metadata with the entry points of the package's pyproject.toml."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [
        line for group, points in groups for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


@dataclass
class Harbour:
    home: Path
    quays: Path
    variables: dict[str, str]

    def start(self) -> LabProcess:
        return start_lab(self.home, simulate_gpus=1, variables=self.variables, python=(sys.executable,))

    def carrel(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "carrel.cli.main", *words],
            env={**os.environ, **self.variables, "CARREL_HOME": str(self.home)},
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def task(self, text: str) -> Path:
        file = self.home.parent / "work.sh"
        file.write_text(text)
        return file


@pytest.fixture
def harbour(tmp_path: Path) -> Harbour:
    root = tmp_path
    install(PACKAGE, root / "site")
    (root / "quays").mkdir()
    home = root / "lab"
    home.mkdir()
    (home / "carrel.toml").write_text(RULES.format(quays=root / "quays"))
    return Harbour(home, root / "quays", {"PYTHONPATH": f"{PACKAGE}:{root / 'site'}"})


@pytest.fixture
def lab(harbour: Harbour) -> Iterator[LabProcess]:
    running = harbour.start()
    yield running
    running.end_jobs()
    running.stop()


def test_the_lab_shows_it_and_refuses_at_submit_what_it_cannot_do(harbour: Harbour, lab: LabProcess) -> None:
    log = harbour.home / "logs" / "server.log"
    wait_until(lambda: "Tide: jobs start at high water" in log.read_text())
    assert f"Tide: the quays in {harbour.quays}" in harbour.carrel("lab")
    with Client(home=harbour.home) as client:
        (here, there) = client.lab().partitions
        assert [(one.name, one.engine, one.slurm) for one in (here, there)] == [
            ("here", "local", None),
            ("harbour", "tide", None),
        ]
        with pytest.raises(Impossible, match="is one of a Tide cluster, which takes no session"):
            client.start_session(SessionRequest(partition="harbour"))


def test_a_job_waits_for_the_engines_own_reason_and_runs_also_after_a_restart_of_the_lab(harbour: Harbour) -> None:
    running = harbour.start()
    with Client(home=harbour.home) as client:
        waits = client.submit_project(harbour.task("echo floats"), partition="harbour").id
        leaves = client.submit_project(harbour.task("echo no"), partition="harbour").id
        here = client.submit_project(harbour.task("echo ashore"), partition="here").id
        told = "waits for high water: quay1 is not marked"
        for job in (waits, leaves):
            wait_until(lambda job=job: client.job(job).message == told, lambda job=job: client.job(job))
        client.cancel(leaves)
        assert client.wait(leaves, timeout=PATIENCE).state == JobState.CANCELLED
        assert client.wait(here, timeout=PATIENCE).state == JobState.COMPLETED
    running.kill()
    running = harbour.start()
    with Client(home=harbour.home) as client:
        assert client.job(waits).message == told
        (harbour.quays / "quay1").touch()
        assert client.wait(waits, timeout=PATIENCE).state == JobState.COMPLETED
        assert b"".join(client.log(waits)) == b"floats\n"
    running.stop()
