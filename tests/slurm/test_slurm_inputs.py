"""Inputs that lie elsewhere come to a cluster before their job has a GPU there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_lab import Lab

from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire.v1 import ResourceRequest
from support.package_index import PackageIndex

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]
GPU = ResourceRequest(memory="64M", gpus=1)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[PackageIndex]:
    """Hands out files when it is told to."""
    with PackageIndex(tmp_path / "web") as web:
        yield web


def project(directory: Path, uri: str, command: str = "cat data; echo; env | grep -c ^SLURM_JOB_GPUS") -> Path:
    directory.mkdir()
    (directory / "MLproject").write_text(
        f'name: t\nentry_points:\n  main:\n    command: "{command}"\n'
        f'carrel:\n  inputs: {{data: "{uri}"}}\n  slurm: {{constraint: fast}}\n'
    )
    return directory


def asked_of_slurm(lab: Lab, number: str) -> str:
    words = ["scontrol", "show", "job", number]
    return subprocess.run(words, env=lab.process.variables, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


@pytest.mark.gate
@pytest.mark.parametrize("partition", ["cluster", "soon"])
def test_no_gpu_is_asked_for_while_data_come(lab: Lab, web: PackageIndex, tmp_path: Path, partition: str) -> None:
    code = project(tmp_path / "a", web.publish("data", b"the data"))
    job = lab.client.submit_project(code, resources=GPU, partition=partition)
    wait_until(lambda: web.asked["data"] == 1, lambda: lab.client.job(job.id))
    told = lab.until(job.id, lambda job: "fetching the input data" in job.message)
    assert (told.state, told.reason, told.attempt) == ("PENDING", "StageIn", 0)
    in_slurm = asked_of_slurm(lab, lab.number(job.id))
    assert ("gres" in in_slurm.lower(), "Features=(null)" in in_slurm, "NumCPUs=1 " in in_slurm) == (False, True, True), in_slurm
    web.open.set()
    done = lab.ended(job.id)
    assert (done.state, done.attempt, lab.log(job.id)) == ("COMPLETED", 1, "the data\n1\n"), done.message
    assert web.asked["data"] == 1, "what was fetched is what the job gets"
    again = lab.client.submit_project(code, resources=GPU, partition=partition)
    assert lab.ended(again.id).state == "COMPLETED"
    wait_until(lambda: not list(lab.home.glob("inputs/*/arriving/*")))


def test_what_is_not_there_is_an_end_without_a_gpu(lab: Lab, web: PackageIndex, tmp_path: Path) -> None:
    web.open.set()
    missing = web.publish("data", b"").removesuffix("data") + "missing"
    job = lab.client.submit_project(project(tmp_path / "a", missing), resources=GPU, partition="cluster")
    ended = lab.ended(job.id)
    assert (ended.state, ended.reason, ended.attempt) == ("FAILED", "InputFailed", 0)
    assert "404" in ended.message


def test_a_fetch_goes_on_when_the_server_is_killed(lab: Lab, web: PackageIndex, tmp_path: Path) -> None:
    job = lab.client.submit_project(project(tmp_path / "a", web.publish("data", b"the data")), resources=GPU, partition="cluster")
    wait_until(lambda: web.asked["data"] == 1, lambda: lab.client.job(job.id))
    lab.kill()
    lab.start()
    web.open.set()
    done = lab.ended(job.id)
    assert (done.state, done.attempt) == ("COMPLETED", 1), done.message
    assert web.asked["data"] == 1


def test_a_cancelled_job_fetches_no_more(lab: Lab, web: PackageIndex, tmp_path: Path) -> None:
    job = lab.client.submit_project(project(tmp_path / "a", web.publish("data", b"the data")), resources=GPU, partition="cluster")
    wait_until(lambda: web.asked["data"] == 1, lambda: lab.client.job(job.id))
    number = lab.number(job.id)
    lab.client.cancel(job.id)
    assert lab.ended(job.id).state == "CANCELLED"
    wait_until(lambda: "JobState=RUNNING" not in asked_of_slurm(lab, number), "Slurm's job to end")
