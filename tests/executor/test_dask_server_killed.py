"""The lab's server is killed under a cluster of Dask: its workers go on, and it is scaled and closed as before."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("distributed")

import distributed

from carrel import Client
from carrel.dask import CarrelCluster
from carrel.testing.waiting import PATIENCE, wait_until
from support.small_lab import MortalLab

PACKAGES = [f"{name}=={version(name)}" for name in ("distributed", "dask")]


def test_a_cluster_outlives_the_server(tmp_path: Path) -> None:
    lab = MortalLab(tmp_path / "home", "--cpus", "4")
    options = {"requirements": PACKAGES, "modules": [], "memory": "1G"}
    with Client(home=lab.home) as client, CarrelCluster(1, client=client, **options) as cluster:
        with distributed.Client(cluster) as dask:
            dask.wait_for_workers(1, timeout=PATIENCE)
            jobs = set(cluster.jobs.values())
            lab.kill()
            assert dask.submit(pow, 2, 5).result(PATIENCE) == 32
            cluster.scale(2)
            lab.start()
            dask.wait_for_workers(2, timeout=PATIENCE)
            wait_until(lambda: len(cluster.jobs) == 2)
            jobs |= set(cluster.jobs.values())
    assert len(jobs) == 2, "the first worker was not replaced"
    for job in jobs:
        assert lab.client.wait(job, timeout=PATIENCE).state == "COMPLETED"
    lab.stop()
