"""`cache`: the result of an earlier job that did the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel import Client
from carrel.testing.waiting import PATIENCE
from carrel.wire import v1
from support.lab_process import LabProcess

SMALL = v1.ResourceRequest(cpus=1, memory="64M")
PROJECT = """
name: sums
entry_points:
  main:
    parameters: {upto: {type: int, default: 3}}
    command: "expr {upto} + 1 > outputs/sum.txt"
  fails:
    command: "exit 3"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "sums"
    place.mkdir()
    (place / "MLproject").write_text(PROJECT)
    (place / "own.txt").write_text(tmp_path.name)  # tests share the lab, and so its earlier jobs
    return place


def submit(client: Client, project: Path, **more: Any) -> v1.JobView:
    job = client.submit_project(project, resources=SMALL, **more)
    client.wait(job.id, timeout=PATIENCE)
    return job


@pytest.mark.gate
def test_the_same_again_is_the_earlier_job_and_says_so(client: Client, project: Path) -> None:
    first = submit(client, project)
    again = submit(client, project, cache=True, name="another name")
    assert (again.id, again.cached, first.cached) == (first.id, True, False)
    assert again.notes == [f"Taken from the cache: job {first.id} had the same code, parameters, environment and inputs."]


def test_without_being_asked_it_is_a_new_job(client: Client, project: Path) -> None:
    first = submit(client, project, cache=True)
    assert submit(client, project).id > first.id


def test_other_parameters_variables_code_and_outcomes_are_not_the_same(client: Client, project: Path) -> None:
    first = submit(client, project, cache=True)
    assert submit(client, project, cache=True, parameters={"upto": "4"}).id != first.id
    assert submit(client, project, cache=True, variables={"SEED": "1"}).id != first.id
    failed = submit(client, project, cache=True, entry_point="fails")
    assert submit(client, project, cache=True, entry_point="fails").id != failed.id
    (project / "own.txt").write_text("changed")
    assert submit(client, project, cache=True).id != first.id


def test_an_input_that_may_change_is_named(client: Client, project: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("1\n")
    (project / "MLproject").write_text(PROJECT + f"carrel:\n  inputs:\n    data.txt: file://{data}\n")
    first = submit(client, project, cache=True)
    assert client.job(first.id).state == "COMPLETED"
    again = submit(client, project, cache=True)
    assert (again.id > first.id, again.cached) == (True, False)
    assert again.notes == [
        f"Not cached: file://{data} may name something else tomorrow. Say its digest, or name a job, run or version."
    ]


def test_nobody_gets_the_result_of_somebody_else(lab: LabProcess, client: Client, project: Path) -> None:
    first = submit(client, project)
    token = client.add_user("grace-again").token
    with Client(url=lab.url, token=token) as grace:
        other = submit(grace, project, cache=True)
    assert (other.id > first.id, other.cached) == (True, False)
