"""What Python submits to a cluster: sweeps, pipelines, submitit's jobs, Dask's workers, and tasks that submit others."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from distributed import Client as DaskClient
from distributed.utils import get_ip
from slurm_lab import RULES, Lab

from carrel import submitit
from carrel.client.executor import Executor, WorkerDied
from carrel.dask import CarrelCluster
from carrel.testing.waiting import PATIENCE, wait_until
from carrel.wire import v1
from support.slurm_site import SlurmSite

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]

BARE = str(Path(sys.base_prefix) / "bin" / "python3")
SMALL = v1.ResourceRequest(cpus=1, memory="128M")


def write(directory: Path, **files: str) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name.replace("_", ".")).write_text(text)
    return directory


@pytest.mark.gate
def test_calls_outlive_their_worker_and_the_server(lab: Lab, site: SlurmSite, tmp_path: Path) -> None:
    def where(number: int) -> tuple[int, str]:
        import os

        return number, os.environ["SLURM_JOB_ID"]

    def waits(file: str) -> str:
        import os
        import time

        while not os.path.exists(file):  # noqa: PTH110
            time.sleep(0.05)
        return os.environ["SLURM_JOB_ID"]

    go = tmp_path / "go"
    with Executor(2, requirements=[], modules=[], memory="64M", partition="cluster", client=lab.client) as calls:
        parts = [calls.submit(waits, str(go)) for _ in range(3)]
        calls.submit(sorted, parts)
        wait_until(lambda: sum(one.running() for one in parts) == 2)
        lost = next(one for one in parts if one.running())
        site.run("scancel", lab.number(lost.job_id or 0))
        with pytest.raises(WorkerDied, match="Cancelled in Slurm"):
            lost.result(PATIENCE)
        again = calls.submit(sorted, [calls.submit(where, 2), calls.submit(where, 1)])
        rest = [one for one in parts if one is not lost]
        wait_until(lambda: all(one.running() for one in rest))
        lab.process.kill()
        lab.start()
        go.touch()
        assert all(one.result(PATIENCE).isdecimal() for one in rest)
        assert [number for number, _ in again.result(PATIENCE)] == [1, 2]


STEPS = """
name: digits
carrel:
  partition: cluster
  resources: {cpus: 1, memory: 64M}
  steps:
    prepare:
      command: "seq 10 > outputs/numbers.txt && echo $SLURM_JOB_ID > outputs/where"
    train:
      inputs: {data: prepare/outputs}
      command: "wc -l < data/numbers.txt > outputs/model.txt && test -n $SLURM_JOB_ID"
    report:
      partition: here
      inputs: {model.txt: train/outputs/model.txt}
      command: "cat model.txt; test -z \\"$SLURM_JOB_ID\\""
"""


def test_steps_of_a_pipeline_run_on_both_sides_of_a_mixed_lab(lab: Lab, tmp_path: Path) -> None:
    project = write(tmp_path / "digits", MLproject=STEPS)
    jobs = lab.client.submit_pipeline(project)
    assert lab.ended(jobs["report"].id).state == "COMPLETED", lab.log(jobs["report"].id)
    assert lab.log(jobs["report"].id).split() == ["10"]
    assert [lab.client.job(one.id).partition for one in jobs.values()] == ["cluster", "cluster", "here"]
    again = lab.client.submit_pipeline(project)
    assert [(one.id, one.cached) for one in again.values()] == [(one.id, True) for one in jobs.values()]


def test_submitits_arrays_and_checkpoints(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(submitit.helpers.Checkpointable):
        """Counts until a second attempt has begun."""

        def __init__(self) -> None:
            self.attempts: list[str] = []

        def __call__(self) -> list[str]:
            import os
            import time

            self.attempts.append(os.environ["SLURM_JOB_ID"])
            while len(self.attempts) < 2:
                time.sleep(0.05)
            return self.attempts

        def checkpoint(self) -> object:
            return submitit.helpers.DelayedSubmission(self)

    def where_it_is(number: int) -> tuple[int, str, str]:
        """What submitit's programs ask."""
        import os

        environment = submitit.JobEnvironment()
        return number, environment.job_id, os.environ["SLURM_ARRAY_TASK_ID"]

    monkeypatch.setenv("CARREL_URL", lab.process.url)
    monkeypatch.setenv("CARREL_TOKEN", lab.process.token)
    executor = submitit.AutoExecutor(folder=tmp_path / "log", requirements=[], modules=[])
    executor.update_parameters(timeout_min=5, mem_gb=1, slurm_partition="cluster")
    jobs = executor.map_array(where_it_is, [0, 1, 2, 3])
    executor.update_parameters(slurm_time="0:20", slurm_signal_delay_s=6)
    counting = executor.submit(Counting())
    assert [job.result() for job in jobs] == [(index, f"{jobs[0].job_id[:-2]}_{index}", str(index)) for index in range(4)]
    attempts = counting.result()
    assert len(set(attempts)) == 2
    assert all(attempt.isdecimal() for attempt in attempts)


def test_dasks_workers_come_and_go(lab: Lab) -> None:
    packages = [f"{name}=={version(name)}" for name in ("distributed", "dask")]
    options = {"requirements": packages, "modules": [], "memory": "512M", "client": lab.client}
    with CarrelCluster(2, partition="cluster", **options) as cluster, DaskClient(cluster) as dask:
        assert cluster.scheduler_address.startswith("tls://")
        dask.wait_for_workers(2, timeout=PATIENCE)
        assert dask.submit(sum, dask.map(abs, range(-4, 0))).result(PATIENCE) == 10
        told = set(dask.run(lambda: os.environ["SLURM_JOB_ID"]).values())
        wait_until(lambda: told == {lab.number(job) for job in cluster.jobs.values()})
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=1)
        wait_until(lambda: not cluster.workers)
        assert dask.submit(abs, -5).result(PATIENCE) == 5


def test_dasks_scheduler_is_where_nodes_reach_it(site: SlurmSite, tmp_path: Path) -> None:
    lab = Lab(tmp_path / "lab", site, f'slurm_url = "http://{get_ip()}:9"\n' + RULES)
    try:
        assert lab.process.url.startswith("http://127.0.0.1:")
        for partition, address in (("cluster", get_ip()), ("here", "127.0.0.1")):
            with CarrelCluster(0, partition=partition, requirements=[], modules=[], client=lab.client) as cluster:
                assert cluster.scheduler_address.startswith(f"tls://{address}:")
    finally:
        lab.stop()
