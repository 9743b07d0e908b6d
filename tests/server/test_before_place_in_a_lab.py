"""Environments are built, and inputs fetched, before their job has a GPU, whatever is killed meanwhile.

Who waits for what with whom is in tests/control/test_before_place.py; the same on a cluster in tests/slurm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.core.spool import read_claim
from carrel.testing.waiting import wait_until
from carrel.wire.v1 import JobDetail, ResourceRequest
from support.package_index import PackageIndex
from support.small_lab import MortalLab

GPU = ResourceRequest(gpus=1)
#: What is asked of the index for what a job needs, what its owner reads meanwhile, and the job's reason.
NEEDS = {
    "environment": ("alpha", "Its environment is being built: installing 1 package.", "BuildEnvironment"),
    "input": ("data", "fetching the input data", "StageIn"),
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    """It answers when it is told to, and says nothing by which one content of a file is told from another."""
    with PackageIndex(tmp_path / "index") as index:
        index.add("alpha")
        yield index


@pytest.fixture
def lab(tmp_path: Path, index: PackageIndex) -> Iterator[MortalLab]:
    """One GPU."""
    lab = MortalLab(tmp_path / "home", simulate_gpus=1, variables=index.variables)
    yield lab
    lab.stop()


def needs(
    lab: MortalLab,
    index: PackageIndex,
    need: str = "",
    *,
    package: str = "alpha",
    data: bytes = b"1.0\n",
    more: str = "",
    **asked: Any,
) -> int:
    """Submit a task that needs an environment or an input, and says what it found there."""
    directory = lab.home.parent / f"code-{need}"
    directory.mkdir(exist_ok=True)
    command, description = "sleep 600", ""
    if need == "environment":
        command, description = f"python -c 'import {package} as it; print(it.version)'", "python_env: python_env.yaml\n"
        (directory / "python_env.yaml").write_text(f"dependencies: [{package}]\n")
    if need == "input":
        uri = index.publish("data", data)
        command, description = "cat data; echo -n $KEY | wc -c >&2", f'carrel:\n  inputs: {{data: "{uri}"}}\n{more}'
    text = f'name: t\nentry_points: {{main: {{command: "{command}"}}}}\n{description}'
    (directory / "MLproject").write_text(text)
    return lab.client.submit_project(directory, resources=GPU, **asked).id


def ended(lab: MortalLab, job_id: int) -> tuple[JobDetail, str]:
    return lab.ended(job_id), lab.log(job_id).splitlines()[0]


@pytest.mark.gate
@pytest.mark.parametrize("need", NEEDS)
def test_nobody_holds_a_gpu_meanwhile(lab: MortalLab, index: PackageIndex, need: str) -> None:
    wanted, message, reason = NEEDS[need]
    waits = needs(lab, index, need)
    wait_until(lambda: index.asked[wanted] == 1)
    told = lab.until(waits, lambda job: message in job.message)
    assert (told.state, told.reason, told.attempt) == ("PENDING", reason, 0)
    other = lab.submit("echo here", resources=GPU).id
    assert lab.ended(other).state == "COMPLETED"
    assert lab.client.job(waits).state == "PENDING"
    index.open.set()
    job, log = ended(lab, waits)
    assert (job.state, log, index.asked[wanted]) == ("COMPLETED", "1.0", 1)
    (attempt,) = lab.client.record(waits)["attempts"]
    if need == "environment":
        assert (attempt["environment_built"], "alpha==1.0" in attempt["environment_lock_text"]) == (False, True)
    else:
        assert attempt["inputs"]["data"].startswith("sha256:")
    wait_until(lambda: not (lab.home / "spool" / str(waits) / "0").exists())


def test_a_build_that_fails_is_said_at_once(lab: MortalLab, index: PackageIndex) -> None:
    holder = needs(lab, index)
    lab.until(holder, lambda job: job.state == "RUNNING")
    job = lab.ended(needs(lab, index, "environment", package="nowhere"))
    assert (job.state, job.reason, job.attempt) == ("FAILED", "EnvironmentFailed", 0)
    for said in (job.message, log := lab.log(job.id)):
        assert "nowhere was not found in the package registry" in said
    assert "".join(lab.client.stream_log(job.id)) == log
    tried = needs(lab, index, "environment", package="nowhere", retries=1)
    lab.until(tried, lambda job: job.reason in ("Resources", "Priority"))  # its attempts try again
    lab.client.cancel(holder)
    found = lab.ended(tried)
    assert (found.state, found.reason, found.attempt) == ("FAILED", "EnvironmentFailed", 2)


@pytest.mark.parametrize("need", [*NEEDS, "environment that fails"])
def test_a_killed_server_finds_what_it_had_begun(lab: MortalLab, index: PackageIndex, need: str) -> None:
    need, _, fails = need.partition(" ")
    wanted = NEEDS[need][0]
    job_id = needs(lab, index, need)
    wait_until(lambda: index.asked[wanted] == 1)
    lab.kill()
    if fails:
        index.withdraw("alpha")
    index.open.set()
    lab.start()
    found = lab.ended(job_id)
    if fails:
        assert (found.state, found.reason, found.attempt) == ("FAILED", "EnvironmentFailed", 0)
        assert "404" in lab.log(job_id)
    else:
        assert (found.state, found.attempt, index.asked[wanted]) == ("COMPLETED", 1, 1)
        wait_until(lambda: not (lab.home / "spool" / str(job_id) / "0").exists())


def test_a_fetch_is_given_the_secrets_of_its_job(lab: MortalLab, index: PackageIndex) -> None:
    lab.client.set_secret("KEY", "open-sesame")
    index.open.set()
    job_id = needs(lab, index, "input", more="  secrets: [KEY]\n")
    assert (lab.ended(job_id).state, lab.log(job_id).split()) == ("COMPLETED", ["1.0", "11"])
    assert index.asked["data"] == 1


def test_a_runner_that_is_killed_is_begun_again_and_then_the_job_sees_to_it(lab: MortalLab, index: PackageIndex) -> None:
    job_id = needs(lab, index, "environment")
    wait_until(lambda: index.asked["alpha"] == 1)
    killed = 0
    for message in ("installing 1 package.", "another job builds this environment; waiting for it."):
        lab.until(job_id, lambda job, told=message: told in job.message)  # type: ignore[misc]
        claim = read_claim(lab.home / "spool" / str(job_id) / "0" / "claim")
        assert claim is not None
        assert claim.pid != killed
        killed = claim.pid
        os.kill(killed, signal.SIGKILL)
    lab.until(job_id, lambda job: job.attempt == 1)
    index.open.set()  # what the first one had started still builds: nobody else may at the same time
    found, log = ended(lab, job_id)
    assert (found.state, log, found.attempt) == ("COMPLETED", "1.0", 1)


def test_an_environment_that_was_removed_meanwhile_is_built_in_the_jobs_place(lab: MortalLab, index: PackageIndex) -> None:
    holder = needs(lab, index)
    lab.until(holder, lambda job: job.state == "RUNNING")
    index.open.set()
    job_id = needs(lab, index, "environment")
    lab.until(job_id, lambda job: job.reason in ("Resources", "Priority"))
    gc = [sys.executable, "-m", "carrel.cli.main", "env", "gc", "--unused-for", "1s", "--home", str(lab.home)]
    wait_until(lambda: "Removed 1 environment" in subprocess.run(gc, check=True, capture_output=True, text=True).stdout)
    lab.client.cancel(holder)
    assert ended(lab, job_id)[1] == "1.0"
    assert lab.client.record(job_id)["attempts"][0]["environment_built"] is True


def test_what_cannot_be_kept_is_fetched_when_its_job_has_its_place(tmp_path: Path, index: PackageIndex) -> None:
    lab = MortalLab(tmp_path / "home", rules='input_cache = "2K"\n', simulate_gpus=1)
    index.open.set()
    job, log = ended(lab, needs(lab, index, "input", data=b"1.0\n" * 1000))
    assert (job.state, log, index.asked["data"]) == ("COMPLETED", "1.0", 2)
    wait_until(lambda: not list((lab.home / "inputs").glob("*/arriving/*")))
    lab.stop()
