"""Programs that import submitit itself: its executor has the lab as the cluster "carrel"."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plugged
import pytest
from submitit.core import plugins
from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError

import submitit
from carrel import Client
from carrel.testing.waiting import wait_until

Opens = Callable[..., submitit.AutoExecutor]


@pytest.fixture
def opens(client: Client, tmp_path: Path) -> Opens:
    """Makes executors whose jobs need no package."""

    def opens(**more: Any) -> submitit.AutoExecutor:
        asked = {"carrel_requirements": [], "carrel_modules": [plugged], "carrel_client": client, **more}
        executor = submitit.AutoExecutor(tmp_path / "folder", cluster="carrel", **asked)
        executor.update_parameters(mem_gb=0.25, cpus_per_task=1)
        return executor

    return opens


@pytest.mark.gate
def test_a_script_needs_one_word(opens: Opens, client: Client) -> None:
    executor = opens(slurm_max_num_timeout=7)
    executor.update_parameters(name="adds", timeout_min=7, gpus_per_node=1, slurm_partition="elsewhere")
    executor.update_parameters(carrel_variables={"A": "b"})
    job = executor.submit(lambda a: (a + 1, os.environ["A"], bool(os.environ["CUDA_VISIBLE_DEVICES"])), 1)
    assert isinstance(job, submitit.Job)
    assert job.result() == (2, "b", True)
    seen = client.job(int(job.job_id))
    assert (seen.name, seen.resources.time, seen.resources.gpus, job.state) == ("adds", 420, 1, "COMPLETED")
    jobs = executor.map_array(pow, [2, 3], [3, 3])
    assert [one.result() for one in submitit.helpers.as_completed(jobs, poll_frequency=0.1)]
    assert [one.job_id.partition("_")[2] for one in jobs] == ["0", "1"]
    with executor.batch():
        first, second = (executor.submit(pow, 2, number) for number in (4, 5))
    assert first.job_id.endswith("_0")

    async def both() -> list[int]:
        return [await one.awaitable().result(poll_interval=0.1) for one in (first, second)]

    assert asyncio.run(both()) == [16, 32]


def test_it_goes_on_from_its_checkpoint(opens: Opens, client: Client, tmp_path: Path) -> None:
    executor = opens()
    executor.update_parameters(carrel_timeout_min=1, carrel_signal_delay_s=52)
    job = executor.submit(plugged.Steps(str(tmp_path)), "word")
    wait_until(lambda: (tmp_path / "begun").exists())
    assert job.result() == ("word!", 2, job.job_id)
    assert client.job(int(job.job_id)).attempt == 2


def test_environments_are_submitits(opens: Opens) -> None:
    executor = opens()
    executor.update_parameters(tasks_per_node=2)
    job = executor.submit(plugged.place)
    found = job.results()
    assert [one["rank"] for one in found] == [0, 1]
    assert [one["environment"]["RANK"] for one in found] == ["0", "1"]
    assert {one["environment"]["WORLD_SIZE"] for one in found} == {"2"}
    assert {(one["cluster"], one["job"], one["tasks"], one["folder"]) for one in found} == {("carrel", job.job_id, 2, "submitit")}
    assert len({one["master"] for one in found}) == 1
    assert job.task(1).result()["rank"] == 1


def test_errors_are_submitits(opens: Opens) -> None:
    def fails() -> None:
        raise ValueError("on purpose")

    executor = opens()
    job = executor.submit(fails)
    with pytest.raises(FailedJobError, match="on purpose"):
        job.result()
    assert type(job.exception()) is FailedJobError
    assert "on purpose" in (job.stderr() or "")
    executor.update_parameters(gpus_per_node=99)
    with pytest.raises(FailedSubmissionError, match="99"):
        executor.submit(pow, 2, 3)
    with pytest.raises(NameError, match="colour"):
        executor.update_parameters(carrel_colour="red")
    executor.update_parameters(gpus_per_node=0)
    waits = executor.submit(plugged.Steps("/nowhere"), "word")
    waits.cancel()
    waits.wait()
    with pytest.raises(UncompletedJobError, match="cancelled"):
        waits.result()


@pytest.mark.quick
def test_an_argument_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="colour"):
        submitit.AutoExecutor(tmp_path, cluster="carrel", carrel_colour="red")


@pytest.mark.quick
def test_programs_that_name_no_cluster_are_as_they_were(tmp_path: Path) -> None:
    executor = submitit.AutoExecutor(tmp_path)
    assert executor.cluster != "carrel"
    with pytest.warns(UserWarning, match="Use 'slurm_partition' instead"):
        executor.update_parameters(partition="gpu")
    with pytest.raises(RuntimeError, match="which environment"):
        submitit.JobEnvironment()


@pytest.mark.quick
def test_it_is_a_plugin_as_submitits_own_tests_want_one() -> None:
    environment = plugins.get_job_environments()["carrel"]
    assert type(environment)._requeue is not submitit.JobEnvironment._requeue
    assert not environment.activated()
    assert plugins.get_executors()["carrel"].affinity() == 0
