"""Environments are built on a cluster before their job has a GPU there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_lab import Lab

from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest
from support.package_index import PackageIndex
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]
GPU = ResourceRequest(memory="64M", gpus=1)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    """An index that hands out packages when it is told to."""
    with PackageIndex(tmp_path / "index") as index:
        index.add("alpha")
        yield index


@pytest.fixture
def lab(site: SlurmSite, tmp_path: Path) -> Iterator[Lab]:
    """A lab whose person has nothing in any cache."""
    (tmp_path / "person").mkdir()
    lab = Lab(tmp_path / "lab", site, HOME=str(tmp_path / "person"))
    yield lab
    lab.stop()


def project(directory: Path, index: PackageIndex, package: str = "alpha") -> Path:
    """A task that says the version of a package and if it has a GPU. It names its index: nodes have no variables of the lab's."""
    directory.mkdir()
    directory.joinpath("requirements.txt").write_text(f"--index-url {index.variables['UV_DEFAULT_INDEX']}\n{package}\n")
    directory.joinpath("python_env.yaml").write_text("dependencies: [-r requirements.txt]\n")
    directory.joinpath("MLproject").write_text(
        "name: t\npython_env: python_env.yaml\nentry_points:\n  main:\n    command: >-\n"
        f"      python -c 'import {package} as it; print(it.version)'; env | grep -c ^SLURM_JOB_GPUS\n"
        "carrel:\n  slurm: {constraint: fast}\n"
    )
    return directory


def asked_of_slurm(lab: Lab, number: str) -> str:
    words = ["scontrol", "show", "job", number]
    return subprocess.run(words, env=lab.process.variables, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def begun_before(lab: Lab, job_id: int) -> bool:
    """Whether Slurm has ever had a job that saw to what this one needs before it had a place."""
    words = ["squeue", "--all", "--states=all", "--noheader", "--format=%k"]
    listed = subprocess.run(words, env=lab.process.variables, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    lab_id = lab.client.lab().lab_id
    return f"carrel.{lab_id}.{job_id}.0" in listed.split()


@pytest.mark.gate
@pytest.mark.parametrize("partition", ["cluster", "soon"])
def test_no_gpu_is_asked_for_while_an_environment_is_built(lab: Lab, index: PackageIndex, tmp_path: Path, partition: str) -> None:
    code = project(tmp_path / "a", index)
    job = lab.client.submit_project(code, resources=GPU, partition=partition)
    wait_until(lambda: index.asked["alpha"] == 1, lambda: lab.client.job(job.id))
    told = lab.until(job.id, lambda job: "installing 1 package" in job.message)
    assert (told.state, told.reason, told.attempt) == ("PENDING", "BuildEnvironment", 0)
    assert told.message == "Its environment is being built: installing 1 package."
    in_slurm = asked_of_slurm(lab, lab.number(job.id))
    assert ("gres" in in_slurm.lower(), "Features=fast" in in_slurm, "NumCPUs=1 " in in_slurm) == (False, True, True), in_slurm
    twin = lab.client.submit_project(code, resources=GPU, partition=partition)
    lab.until(twin.id, lambda twin: f"the same as that of job {job.id}" in twin.message)
    index.open.set()
    for one in (job, twin):
        done = lab.ended(one.id)
        assert (done.state, done.attempt, lab.log(one.id)) == ("COMPLETED", 1, "1.0\n1\n"), done.message
    (attempt,) = lab.client.record(job.id)["attempts"]
    assert (attempt["environment_built"], "alpha==1.0" in attempt["environment_lock_text"]) == (False, True)
    assert index.asked["alpha"] == 1, "it was built once"
    again = lab.client.submit_project(code, resources=GPU, partition=partition)
    assert lab.ended(again.id).state == "COMPLETED"
    assert (begun_before(lab, job.id), begun_before(lab, again.id)) == (True, False), "what is there costs no job of Slurm's"


def test_a_build_that_fails_is_an_end_without_a_gpu(lab: Lab, index: PackageIndex, tmp_path: Path) -> None:
    index.open.set()
    job = lab.client.submit_project(project(tmp_path / "a", index, "missing"), resources=GPU, partition="cluster")
    ended = lab.ended(job.id)
    assert (ended.state, ended.reason, ended.attempt) == ("FAILED", "EnvironmentFailed", 0)
    assert "missing" in ended.message


def test_a_build_goes_on_when_the_server_is_killed(lab: Lab, index: PackageIndex, tmp_path: Path) -> None:
    job = lab.client.submit_project(project(tmp_path / "a", index), resources=GPU, partition="cluster")
    wait_until(lambda: index.asked["alpha"] == 1, lambda: lab.client.job(job.id))
    number = lab.number(job.id)
    lab.kill()
    lab.start()
    lab.until(job.id, lambda job: job.reason == "BuildEnvironment" and "installing" in job.message)
    assert "JobState=RUNNING" in asked_of_slurm(lab, number)
    index.open.set()
    done = lab.ended(job.id)
    assert (done.state, done.attempt, lab.log(job.id)) == ("COMPLETED", 1, "1.0\n1\n"), done.message
    assert index.asked["alpha"] == 1
    lab.kill()
    lab.start()  # and remembers nothing of it
    again = lab.client.submit_project(tmp_path / "a", resources=GPU, partition="cluster")
    assert lab.ended(again.id).state == "COMPLETED"
    assert not begun_before(lab, again.id), "that it is there can be seen"


def test_a_cancelled_job_builds_no_more(lab: Lab, index: PackageIndex, tmp_path: Path) -> None:
    job = lab.client.submit_project(project(tmp_path / "a", index), resources=GPU, partition="cluster")
    wait_until(lambda: index.asked["alpha"] == 1, lambda: lab.client.job(job.id))
    number = lab.number(job.id)
    lab.client.cancel(job.id)
    assert lab.ended(job.id).state == "CANCELLED"
    wait_until(lambda: "JobState=RUNNING" not in asked_of_slurm(lab, number), "Slurm's job to end")
