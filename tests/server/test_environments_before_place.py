"""Environments are built before their job has a GPU, once for whoever wants the same, and whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.core.spool import read_claim
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.lab_process import LabProcess, start_lab
from support.package_index import PackageIndex
from support.ports import kept_port

GPU = ResourceRequest(gpus=1)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    with PackageIndex(tmp_path / "index") as index:
        index.add("alpha")
        index.add("beta")
        yield index


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def lab(home: Path, index: PackageIndex) -> Iterator[LabProcess]:
    """One GPU."""
    with kept_port() as port:
        lab = start_lab(home, "--port", str(port), simulate_gpus=1, variables=index.variables)
        yield lab
        lab.stop()


@pytest.fixture
def client(lab: LabProcess, home: Path) -> Iterator[Client]:
    with Client(home=home) as client:
        yield client


def project(directory: Path, *packages: str, command: str = "", inputs: str = "") -> Path:
    """A task in an environment of these packages, which says their versions; without packages it has none."""
    directory.mkdir()
    says = command or f"python -c 'import {packages[0]} as it; print(it.version)'"
    environment = "python_env: python_env.yaml\n" if packages else ""
    (directory / "MLproject").write_text(f'name: t\n{environment}entry_points:\n  main:\n    command: "{says}"\n{inputs}')
    if packages:
        (directory / "python_env.yaml").write_text(f"dependencies: [{', '.join(packages)}]\n")
    return directory


def ended(client: Client, job_id: int) -> tuple[JobDetail, str]:
    job = client.wait(job_id, timeout=PATIENCE)
    return job, b"".join(client.log(job_id)).decode()


@pytest.mark.gate
def test_nobody_holds_a_gpu_while_an_environment_is_built(
    client: Client, home: Path, index: PackageIndex, tmp_path: Path
) -> None:
    code = project(tmp_path / "a", "alpha")
    waits = client.submit_project(code, resources=GPU)
    wait_until(lambda: index.asked["alpha"] == 1)
    told = wait_until(lambda: job if "installing 1 package" in (job := client.job(waits.id)).message else None)
    assert (told.state, told.reason, told.attempt) == ("PENDING", "BuildEnvironment", 0)
    assert told.message == "Its environment is being built: installing 1 package."
    other = client.submit_project(project(tmp_path / "b", command="echo here"), resources=GPU)
    assert ended(client, other.id)[0].state == "COMPLETED"
    assert client.job(waits.id).state == "PENDING"
    index.open.set()
    job, log = ended(client, waits.id)
    assert (job.state, log) == ("COMPLETED", "1.0\n")
    (attempt,) = client.record(waits.id)["attempts"]
    assert (attempt["environment_built"], "alpha==1.0" in attempt["environment_lock_text"]) == (False, True)
    wait_until(lambda: not (home / "spool" / str(waits.id) / "0").exists())


def test_an_environment_that_is_there_costs_nothing(client: Client, home: Path, index: PackageIndex, tmp_path: Path) -> None:
    index.open.set()
    code = project(tmp_path / "a", "alpha")
    first = client.submit_project(code, resources=GPU)
    assert ended(client, first.id)[0].state == "COMPLETED"
    # Whoever sees to what a job needs begins in this directory, and removes it afterwards.
    mark = home / "spool" / str(first.id + 1) / "0" / "mark"
    mark.parent.mkdir(mode=0o700, parents=True)
    mark.touch()
    again = client.submit_project(code, resources=GPU)
    assert (again.id, ended(client, again.id)[0].state) == (first.id + 1, "COMPLETED")
    assert mark.exists()


def test_the_jobs_of_a_sweep_build_once(client: Client, index: PackageIndex, tmp_path: Path) -> None:
    code = project(tmp_path / "a", "alpha")
    jobs = [client.submit_project(code, resources=GPU) for _ in range(3)]
    wait_until(lambda: index.asked["alpha"] == 1)
    message = f"Its environment, the same as that of job {jobs[0].id}, is being built: installing 1 package."
    wait_until(lambda: client.job(jobs[2].id).message == message)
    client.cancel(jobs[0].id)  # the others go on waiting for it
    assert client.wait(jobs[0].id, timeout=PATIENCE).state == "CANCELLED"
    index.open.set()
    assert [ended(client, job.id)[0].state for job in jobs] == ["CANCELLED", "COMPLETED", "COMPLETED"]
    assert index.asked["alpha"] == 1


def test_an_environment_and_inputs_come_one_after_the_other(client: Client, index: PackageIndex, tmp_path: Path) -> None:
    data = f"carrel:\n  inputs: {{data.txt: '{index.publish('data.txt', b'5')}'}}\n"
    code = project(tmp_path / "a", "alpha", command="cat data.txt", inputs=data)
    job = client.submit_project(code, resources=GPU)
    wait_until(lambda: index.asked["alpha"] == 1)
    assert (client.job(job.id).reason, index.asked["data.txt"]) == ("BuildEnvironment", 0)
    index.open.set()
    assert ended(client, job.id)[1] == "5"
    assert index.asked["data.txt"] == 1
    told = [str(event.data.get("reason")) for event in client.events(job.id) if event.type == "progress"]
    assert list(dict.fromkeys(told))[:2] == ["BuildEnvironment", "StageIn"]


def test_a_build_ends_with_the_last_job_that_waits_for_it(
    client: Client, home: Path, index: PackageIndex, tmp_path: Path
) -> None:
    code = project(tmp_path / "a", "alpha")
    jobs = [client.submit_project(code, resources=GPU) for _ in range(2)]
    wait_until(lambda: index.asked["alpha"] == 1)
    builder = home / "spool" / str(jobs[0].id) / "0"
    claim = wait_until(lambda: read_claim(builder / "claim"))
    for job in jobs:
        client.cancel(job.id)
    assert [client.wait(job.id, timeout=PATIENCE).state for job in jobs] == ["CANCELLED", "CANCELLED"]
    wait_until(lambda: not builder.exists())
    assert claim is not None
    wait_until(lambda: not Path(f"/proc/{claim.pid}").exists())
    assert not list((home / "environments" / "envs").glob("*"))


def test_a_build_that_fails_is_said_at_once(client: Client, index: PackageIndex, tmp_path: Path) -> None:
    holder = client.submit_project(project(tmp_path / "h", command="sleep 600"), resources=GPU)
    wait_until(lambda: client.job(holder.id).state == "RUNNING")
    code = project(tmp_path / "a", "nowhere")
    job, log = ended(client, client.submit_project(code, resources=GPU).id)
    assert (job.state, job.reason, job.attempt) == ("FAILED", "EnvironmentFailed", 0)
    assert "nowhere was not found in the package registry" in job.message
    assert "nowhere was not found in the package registry" in log
    assert "".join(client.stream_log(job.id)) == log
    tried = client.submit_project(code, resources=GPU, retries=1)
    wait_until(lambda: client.job(tried.id).reason in ("Resources", "Priority"))  # its attempts try again
    client.cancel(holder.id)
    found, log = ended(client, tried.id)
    assert (found.state, found.reason, found.attempt) == ("FAILED", "EnvironmentFailed", 2)
    assert "nowhere was not found in the package registry" in log


def test_who_shares_a_build_that_fails_is_told_where_its_log_is(client: Client, index: PackageIndex, tmp_path: Path) -> None:
    code = project(tmp_path / "a", "alpha")
    first, second = [client.submit_project(code, resources=GPU) for _ in range(2)]
    wait_until(lambda: index.asked["alpha"] == 1)
    index.withdraw("alpha")
    index.open.set()
    (builder, log), (other, _) = ended(client, first.id), ended(client, second.id)
    assert (builder.state, builder.reason, other.state, other.reason) == ("FAILED", "EnvironmentFailed") * 2
    assert "404" in builder.message
    assert "404" in log
    where = f"It is the environment of job {first.id}, too, whose log says more: `carrel logs {first.id}`."
    assert other.message == f"{builder.message.rstrip()}\n{where}"


def test_a_killed_server_finds_its_builds_again(lab: LabProcess, home: Path, index: PackageIndex, tmp_path: Path) -> None:
    with Client(home=home) as client:
        job = client.submit_project(project(tmp_path / "a", "alpha"), resources=GPU)
    wait_until(lambda: index.asked["alpha"] == 1)
    lab.kill()
    index.open.set()
    again = start_lab(home, "--port", lab.url.rpartition(":")[2], simulate_gpus=1, variables=index.variables)
    try:
        with Client(home=home) as client:
            found, log = ended(client, job.id)
        assert (found.state, log, found.attempt) == ("COMPLETED", "1.0\n", 1)
        assert index.asked["alpha"] == 1
        wait_until(lambda: not (home / "spool" / str(job.id) / "0").exists())
    finally:
        again.stop()


def test_a_build_that_failed_while_there_was_no_server_is_told(
    lab: LabProcess, home: Path, index: PackageIndex, tmp_path: Path
) -> None:
    with Client(home=home) as client:
        job = client.submit_project(project(tmp_path / "a", "alpha"), resources=GPU)
    wait_until(lambda: index.asked["alpha"] == 1)
    lab.kill()
    index.withdraw("alpha")
    index.open.set()
    again = start_lab(home, "--port", lab.url.rpartition(":")[2], simulate_gpus=1, variables=index.variables)
    try:
        with Client(home=home) as client:
            found, log = ended(client, job.id)
        assert (found.state, found.reason, found.attempt) == ("FAILED", "EnvironmentFailed", 0)
        assert "404" in log
    finally:
        again.stop()


def test_a_build_whose_runner_is_killed_is_begun_again_and_then_made_in_the_jobs_place(
    client: Client, home: Path, index: PackageIndex, tmp_path: Path
) -> None:
    job = client.submit_project(project(tmp_path / "a", "alpha"), resources=GPU)
    wait_until(lambda: index.asked["alpha"] == 1)
    killed = 0
    for message in ("installing 1 package.", "another job builds this environment; waiting for it."):
        wait_until(lambda told=message: told in client.job(job.id).message)
        claim = read_claim(home / "spool" / str(job.id) / "0" / "claim")
        assert claim is not None
        assert claim.pid != killed
        killed = claim.pid
        os.kill(killed, signal.SIGKILL)
    wait_until(lambda: client.job(job.id).attempt == 1)
    index.open.set()  # what the first one had started still builds: nobody else may at the same time
    found, log = ended(client, job.id)
    assert (found.state, log, found.attempt) == ("COMPLETED", "1.0\n", 1)


def test_an_environment_that_was_removed_meanwhile_is_built_in_the_jobs_place(
    client: Client, home: Path, index: PackageIndex, tmp_path: Path
) -> None:
    holder = client.submit_project(project(tmp_path / "h", command="sleep 600"), resources=GPU)
    wait_until(lambda: client.job(holder.id).state == "RUNNING")
    index.open.set()
    job = client.submit_project(project(tmp_path / "a", "alpha"), resources=GPU)
    wait_until(lambda: client.job(job.id).reason in ("Resources", "Priority"))
    gc = [sys.executable, "-m", "carrel.cli.main", "env", "gc", "--unused-for", "1s", "--home", str(home)]
    wait_until(lambda: "Removed 1 environment" in subprocess.run(gc, check=True, capture_output=True, text=True).stdout)
    client.cancel(holder.id)
    assert ended(client, job.id)[1] == "1.0\n"
    assert client.record(job.id)["attempts"][0]["environment_built"] is True
