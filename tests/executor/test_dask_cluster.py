"""A real cluster of Dask whose workers are jobs of a real lab."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

import distributed

from carrel import Client
from carrel.dask import CarrelCluster
from carrel.testing.waiting import PATIENCE, wait_until
from support.lab_process import LabProcess

Opens = Callable[..., CarrelCluster]
PACKAGES = [f"{name}=={version(name)}" for name in ("distributed", "dask")]


@pytest.fixture
def opens(client: Client) -> Iterator[Opens]:
    opened: list[CarrelCluster] = []

    def opens(workers: int = 1, **more: Any) -> CarrelCluster:
        options = {"requirements": PACKAGES, "modules": [], "memory": "1G", **more}
        found = CarrelCluster(workers, client=client, **options)
        opened.append(found)
        return found

    yield opens
    for cluster in opened:
        cluster.close()


def jobs(client: Client, cluster: CarrelCluster) -> set[int]:
    """Those of the lab's jobs that are the cluster's workers."""
    return {one.job_id for one in client.pool(cluster.pool_id).workers if one.state == "RUNNING"}


def test_workers_are_jobs_that_come_and_go(opens: Opens, client: Client) -> None:
    cluster = opens(2)
    with distributed.Client(cluster) as dask:
        dask.wait_for_workers(2, timeout=PATIENCE)
        assert dask.submit(sum, dask.map(lambda n: n * n, range(10))).result(PATIENCE) == 285
        told = set(dask.run(lambda: int(os.environ["CARREL_JOB_ID"])).values())
        wait_until(lambda: told == jobs(client, cluster) == set(cluster.jobs.values()))
        cluster.scale(1)
        wait_until(lambda: len(jobs(client, cluster)) == 1)
        (left,) = jobs(client, cluster)
        cluster.scale(3)
        dask.wait_for_workers(3, timeout=PATIENCE)
        wait_until(lambda: len(jobs(client, cluster)) == 3)
        assert left in jobs(client, cluster)
        mine = jobs(client, cluster)
    cluster.close()
    wait_until(lambda: all(client.job(job).state == "COMPLETED" for job in mine))
    assert client.pool(cluster.pool_id).closed_at is not None


def test_it_adapts_to_the_work(opens: Opens, client: Client) -> None:
    cluster = opens(0)
    cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
    with distributed.Client(cluster) as dask:
        assert dask.submit(pow, 2, 5).result(PATIENCE) == 32
        wait_until(lambda: not jobs(client, cluster))


@pytest.mark.parametrize("kill", [False, True])
def test_a_worker_that_ends_by_itself_is_seen_and_replaced(
    opens: Opens, client: Client, caplog: pytest.LogCaptureFixture, kill: bool
) -> None:
    cluster = opens(1)
    with distributed.Client(cluster) as dask:
        dask.wait_for_workers(1, timeout=PATIENCE)
        (job,) = jobs(client, cluster)
        if kill:
            (pid,) = dask.run(os.getpid).values()
            os.kill(pid, signal.SIGKILL)
        else:
            client.cancel(job)
        wait_until(lambda: not cluster.workers)
        wait_until(lambda: not dask.scheduler_info()["workers"])
        wait_until(lambda: (f"carrel logs {job}" in caplog.text) == kill)
        cluster.scale(1)
        dask.wait_for_workers(1, timeout=PATIENCE)
        assert jobs(client, cluster) != {job}


def test_gpus_are_the_workers_own(opens: Opens) -> None:
    cluster = opens(1, gpus=1)
    with distributed.Client(cluster) as dask:
        found = dask.submit(os.getenv, "CUDA_VISIBLE_DEVICES", resources={"GPU": 1}).result(PATIENCE)
        assert found


def test_it_speaks_tls_only_with_who_has_its_key_which_is_in_no_command_line(opens: Opens) -> None:
    cluster = opens(1)
    assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
    with distributed.Client(cluster) as dask:
        dask.wait_for_workers(1, timeout=PATIENCE)
        (words,) = dask.run(lambda: Path("/proc/self/cmdline").read_text()).values()
        assert "KEY" not in words
        (address,) = dask.scheduler_info()["workers"]
        assert address.startswith("tls://")
    with pytest.raises((OSError, TypeError, ssl.SSLError)):
        distributed.Client(cluster.scheduler_address, security=distributed.Security.temporary(), timeout=3)


def test_workers_that_cannot_start_say_why(opens: Opens, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    cluster = opens(1, requirements=[])  # without dask
    wait_until(lambda: "is gone" in caplog.text)
    assert "No module named 'dask'" in caplog.text
    assert not cluster.workers


def test_workers_end_when_their_program_is_killed(lab: LabProcess, client: Client) -> None:
    program = f"""
import sys
from carrel.dask import CarrelCluster
from dask.distributed import Client
if __name__ == "__main__":
    cluster = CarrelCluster(1, requirements={PACKAGES}, modules=[], memory="1G")
    Client(cluster).wait_for_workers(1)
    print(cluster.pool_id, flush=True)
    sys.stdin.read()
"""
    environment = {**os.environ, "CARREL_URL": lab.url, "CARREL_TOKEN": lab.token}
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        pool = int(process.stdout.readline())
        (worker,) = client.pool(pool).workers
        process.kill()
    wait_until(lambda: client.job(worker.job_id).state == "COMPLETED")
    assert next(client.calls(pool)).state == "COMPLETED"
    client.close_pool(pool)


def test_without_dask_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['distributed'] = None; import carrel.dask"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install distributed" in done.stderr
