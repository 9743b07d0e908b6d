"""An engine that Carrel does not know (tests/engines/tide), installed beside it, runs jobs of a lab."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from carrel import Client
from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.job import JobState
from carrel.lab.server import engine_factories
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import SessionRequest
from support.lab_process import LabProcess, start_lab

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

    def start(self, *, installed: bool = True) -> LabProcess:
        variables = self.variables if installed else {}
        return start_lab(self.home, simulate_gpus=1, variables=variables, python=(sys.executable,))

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
    wait_until(lambda: log.exists() and "Tide: jobs start at high water" in log.read_text())
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
    rules = (harbour.home / "carrel.toml").read_text()
    with pytest.raises(RuntimeError, match=re.escape("partitions.harbour.engine is 'tide'.")):
        harbour.start(installed=False)
    (harbour.home / "carrel.toml").write_text("[partitions.here]\n")
    with pytest.raises(RuntimeError, match='The engine "tide" is not installed.'):
        harbour.start(installed=False)
    (harbour.home / "carrel.toml").write_text(rules)
    running = harbour.start()
    with Client(home=harbour.home) as client:
        assert client.job(waits).message == told
        (harbour.quays / "quay1").touch()
        assert client.wait(waits, timeout=PATIENCE).state == JobState.COMPLETED
        assert b"".join(client.log(waits)) == b"floats\n"
    running.stop()


def test_the_engines_own_reasons_are_shown_with_what_they_mean(harbour: Harbour, lab: LabProcess) -> None:
    with Client(home=harbour.home) as client:
        job = client.submit_project(harbour.task("echo no"), partition="harbour").id
        wait_until(lambda: client.job(job).reason == "HighWater", lambda: client.job(job))
        assert client.job(job).meaning.startswith("Its quay waits for high water.")
        assert "HighWater: Its quay waits for high water. It starts by itself then;" in harbour.carrel("show", str(job))
        (harbour.quays / "quay1.closed").touch()
        over = client.wait(job, timeout=PATIENCE)
        assert (over.state, over.reason, over.message) == (JobState.FAILED, "QuayClosed", "quay1 is closed.")
        told = [event.data.get("reason") for event in client.events(job) if event.type in ("progress", "state")]
        assert [code for code in told if code in ("HighWater", "QuayClosed")] == ["HighWater", "QuayClosed"]
    shown = harbour.carrel("show", str(job))
    assert "QuayClosed: Its quay was closed before the water came. Submit it again for another quay." in shown
    with httpx.Client(base_url=lab.url, timeout=PATIENCE, follow_redirects=True) as browser:
        browser.post("/login", data={"token": lab.token}, headers={"Origin": lab.url}).raise_for_status()
        page = browser.get(f"/jobs/{job}").text
    assert 'title="Its quay was closed before the water came. Submit it again for another quay."' in page


PROJECT = """
name: harbour
entry_points:
  main:
    command: echo unloaded
carrel:
  tide:
    quay: 2
"""


def test_the_engines_own_option_is_understood_wherever_a_task_says_something(harbour: Harbour, lab: LabProcess) -> None:
    project = harbour.home.parent / "project"
    project.mkdir()
    (project / "MLproject").write_text(PROJECT)
    says = "waits for high water: quay{} is not marked"

    def waits(number: int, quay: int) -> None:
        wait_until(lambda: client.job(number).message == says.format(quay), lambda: client.job(number))

    with Client(home=harbour.home) as client:
        told = [
            client.submit_project(project, partition="harbour"),
            client.submit_project(project, partition="harbour", backend_config={"tide-quay": 3}),
            client.submit_project(project, partition="harbour", engines={"tide": {"quay": 1}}),
        ]
        for job, quay in zip(told, (2, 3, 1), strict=True):
            waits(job.id, quay)
        said = harbour.carrel("submit", str(project), "--partition", "harbour", "--tide-quay", "3", "--json")
        waits(json.loads(said)["id"], 3)
        assert "quay=3" in harbour.carrel("show", str(told[1].id))
        (harbour.quays / "quay2").touch()
        assert client.wait(told[0].id, timeout=PATIENCE).state == JobState.COMPLETED
        for quay, message in ((4, "quay is 4, which is kept for pilots."), (5, "tide: quay is 5."), ("a", "tide: quay is 'a'.")):
            with pytest.raises(Invalid, match=re.escape(message)):
                client.submit_project(project, partition="harbour", engines={"tide": {"quay": quay}})
        with pytest.raises(Invalid, match=re.escape('tide: there is no option "key".')):
            client.submit_project(project, partition="harbour", engines={"tide": {"key": 1}})
        with pytest.raises(Impossible, match='which only a partition of a Tide cluster can do, and partition "here" is the lab'):
            client.submit_project(project, partition="here")
    assert "--tide-quay" in harbour.carrel("run", "--help")
    properties = json.loads(harbour.carrel("schema", "MLproject"))["properties"]["carrel"]["properties"]
    assert properties["tide"]["properties"]["quay"]["maximum"] == 4


def test_a_reason_of_the_labs_own_is_not_declared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        reasons = {"Resources": "Something else."}

    monkeypatch.setattr(engine_factories, "factories", lambda: {"other": Other()})
    with pytest.raises(Invalid, match='The engine "other" declares the reason "Resources", which means already: First in line'):
        engine_factories.reasons.__wrapped__()


def test_two_packages_of_one_name_are_refused(harbour: Harbour) -> None:
    other = harbour.home.parent / "other"
    other.mkdir()
    (other / "pyproject.toml").write_text((PACKAGE / "pyproject.toml").read_text().replace("carrel-tide", "another-tide"))
    install(other, harbour.home.parent / "site")
    assert 'Two packages bring "tide" (carrel.engines).' in harbour.carrel("schema", "carrel.toml")
    assert 'Two packages bring "tide" (carrel.task_options).' in harbour.carrel("run", "--help")
