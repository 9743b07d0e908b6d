"""Calls of functions on a cluster: workers are jobs of Slurm."""

from __future__ import annotations

import pytest
from slurm_lab import Lab

from carrel import Executor
from carrel.client.executor import WorkerDied
from carrel.testing.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm-lab")]


def executor(lab: Lab, partition: str) -> Executor:
    return Executor(1, requirements=[], modules=[], memory="64M", partition=partition, client=lab.client)


@pytest.mark.gate
@pytest.mark.parametrize("partition", ["cluster", "soon"])
def test_a_call_runs_on_a_node_of_the_cluster(lab: Lab, partition: str) -> None:
    def where() -> str:
        import os

        print("on a node")
        return os.environ["SLURM_JOB_ID"]

    with executor(lab, partition) as calls:
        future = calls.submit(where)
        assert future.result(PATIENCE).isdecimal()
        assert future.stdout() == "on a node\n"
        assert lab.client.job(future.job_id or 0).partition == partition
        assert list(calls.map(abs, range(-3, 0))) == [3, 2, 1]


def test_a_worker_that_is_cancelled_fails_its_call(lab: Lab) -> None:
    def waits() -> None:
        import time

        time.sleep(600)

    with executor(lab, "cluster") as calls:
        future = calls.submit(waits)
        wait_until(future.running)
        lab.client.cancel(future.job_id or 0)
        with pytest.raises(WorkerDied, match="CANCELLED"):
            future.result(PATIENCE)
        assert calls.submit(abs, -1).result(PATIENCE) == 1
