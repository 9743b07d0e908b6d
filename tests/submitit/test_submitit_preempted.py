"""Jobs that others take the place of, a lab that is killed meanwhile, and jobs of others."""

from __future__ import annotations

from pathlib import Path

import pytest
import submitted

from carrel import Client, submitit
from carrel.core.domain.errors import Denied, NotFound
from carrel.testing.waiting import wait_until
from support.lab_process import start_lab

RULES = """
[qos.desk]
preempts = ["batch"]

[qos.batch]
preempt_mode = "requeue"
preempt_grace = "40s"
"""


def test_a_preempted_job_takes_a_checkpoint_and_goes_on_although_the_lab_is_killed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "carrel.toml").write_text(RULES)
    lab = start_lab(home, "--cpus", "4", simulate_gpus=1)
    client = Client(home=home)
    executor = submitit.AutoExecutor(tmp_path / "folder", requirements=[], modules=[submitted], client=client)
    executor.update_parameters(slurm_qos="batch", gpus_per_node=1, mem_gb=0.25, cpus_per_task=1)
    job = executor.submit(submitted.Steps(str(tmp_path)), "word")
    plain = tmp_path / "plain"
    plain.mkdir()
    wait_until((tmp_path / "begun").exists, "its beginning")
    lab.kill()
    lab = start_lab(home, "--cpus", "4", simulate_gpus=1)
    executor.update_parameters(slurm_qos="desk")
    assert executor.submit(abs, -1).result() == 1
    assert job.result() == ("word!", 2)
    assert client.job(int(job.job_id)).attempt == 2
    executor.update_parameters(slurm_qos="batch")
    again = executor.submit(submitted.begins_and_waits, str(plain))
    wait_until((plain / "begun").exists, "the beginning of a function without a checkpoint")
    executor.update_parameters(slurm_qos="desk")
    assert executor.submit(abs, -2).result() == 2
    (plain / "go").touch()
    assert again.result() == "done"
    assert client.job(int(again.job_id)).attempt == 2
    lab.end_jobs()
    client.close()
    lab.stop()


def test_results_of_others_are_not_unpickled_and_strangers_find_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0)
    with Client(home=home) as administrator:
        ada, bob = (Client(url=lab.url, token=administrator.add_user(name).token) for name in ("ada", "bob"))
        executor = submitit.AutoExecutor(tmp_path / "folder", requirements=[], modules=[], client=ada)
        executor.update_parameters(mem_gb=0.25, cpus_per_task=1)
        job = executor.submit(abs, -1)
        assert job.result() == 1
        assert submitit.Job(tmp_path / "again", job.job_id, client=ada).result() == 1
        with pytest.raises(Denied, match="could do anything"):
            submitit.Job(tmp_path / "administrator", job.job_id, client=administrator).result()
        stranger = submitit.Job(tmp_path / "stranger", job.job_id, client=bob)
        assert stranger.state == "UNKNOWN"
        with pytest.raises(NotFound):
            stranger.result()
        lab.end_jobs()
        for client in (ada, bob):
            client.close()
    lab.stop()
