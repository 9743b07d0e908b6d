"""`examples/digits`, exported in one lab and replayed in another that has neither the project nor the environment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_line import PATIENCE, CommandLine

from carrel.client import Client
from support.lab_process import start_lab

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.mark.mlflow
def test_digits_is_bit_identical_in_a_fresh_home(tmp_path: Path) -> None:
    crate = tmp_path / "digits.zip"
    first = start_lab(tmp_path / "first", tracking=True, simulate_gpus=0)
    project = tmp_path / "digits"
    shutil.copytree(DIGITS, project)
    try:
        with Client(home=first.home) as client:
            job = client.submit_project(project, parameters={"epochs": "2"})
            assert client.wait(job.id, timeout=PATIENCE).state == "COMPLETED"
            client.export_job(job.id, crate)
            lock = client.record(job.id)["attempts"][-1]["environment_lock"]
    finally:
        first.stop()
        shutil.rmtree(first.home)
        shutil.rmtree(project)
    second = start_lab(tmp_path / "second", tracking=True, simulate_gpus=0)
    try:
        there = CommandLine({"CARREL_HOME": str(second.home)}, tmp_path)
        ran = there("replay", str(crate), "--json")
        assert ran.code == 0, ran.out + ran.err
        assert (ran.json["agreement"], ran.json["outputs"], ran.json["metrics"]) == ("identical", 2, 2)
        assert ran.json["conditions"] == []
        with Client(home=second.home) as client:
            again = client.record(ran.json["job"])
        assert again["attempts"][-1]["environment_lock"] == lock
        assert not again["task"].get("rerun_of")
    finally:
        second.end_jobs()
        second.stop()
