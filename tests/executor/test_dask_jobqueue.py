"""What dask-jobqueue's public tests (0.9.0) ask of a cluster in use, asked of ours: benchmarks/README.md says which."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed")

import distributed

from carrel import Client
from carrel.core.domain.errors import Invalid
from carrel.dask import CarrelCluster
from carrel.testing.waiting import PATIENCE, wait_until
from support.ports import kept_port

Opens = Callable[..., CarrelCluster]
PACKAGES = [f"{name}=={version(name)}" for name in ("distributed", "dask")]


@pytest.fixture
def opens(client: Client) -> Iterator[Opens]:
    opened: list[CarrelCluster] = []

    def opens(**more: Any) -> CarrelCluster:
        found = CarrelCluster(client=client, **{"requirements": PACKAGES, "modules": [], "cores": 1, "memory": "1GB", **more})
        opened.append(found)
        return found

    yield opens
    for cluster in opened:
        cluster.close()


@pytest.mark.gate
def test_basic(opens: Opens, tmp_path: Path) -> None:
    more = {"death_timeout": 50, "local_directory": str(tmp_path), "job_script_prologue": ["export A=b"]}
    cluster = opens(walltime="00:02:00", cores=2, processes=1, memory="2GiB", **more)
    with distributed.Client(cluster) as dask:
        cluster.scale(2)
        dask.wait_for_workers(2, timeout=PATIENCE)
        assert dask.submit(lambda x: x + 1, 10).result(PATIENCE) == 11
        assert set(dask.run(os.getenv, "A").values()) == {"b"}
        for worker in dask.scheduler_info()["workers"].values():
            assert (worker["memory_limit"], worker["nthreads"]) == (2 << 30, 2)
            assert worker["local_directory"].startswith(str(tmp_path))
        cluster.scale(0)
        wait_until(lambda: not dask.scheduler_info()["workers"])


def test_adaptive(opens: Opens) -> None:
    cluster = opens(walltime="00:02:00", cores=2, processes=1, memory="2GB")
    cluster.adapt()
    with distributed.Client(cluster) as dask:
        future = dask.submit(lambda x: x + 1, 10)
        dask.wait_for_workers(1, timeout=PATIENCE)
        assert future.result(PATIENCE) == 11
        del future
        wait_until(lambda: not dask.scheduler_info()["workers"])


def test_nworkers_scale(opens: Opens) -> None:
    cluster = opens(cores=2, processes=2, memory="1GB")
    with distributed.Client(cluster) as dask:
        cluster.scale(cores=2)
        dask.wait_for_workers(2, timeout=PATIENCE)
        assert [worker["nthreads"] for worker in dask.scheduler_info()["workers"].values()] == [1, 1]
        for asked, workers in (({"jobs": 2}, 4), ({"n": 5}, 5), ({"memory": "512MiB"}, 1), ({"n": 0}, 0)):
            cluster.scale(**asked)
            assert len(cluster.worker_spec) == workers


def test_adapt_parameters(opens: Opens) -> None:
    cluster = opens(cores=2, processes=2)
    assert cluster.adapt(minimum=2, maximum=4, interval="10s").maximum == 4
    adapt = cluster.adapt(minimum_jobs=0, maximum_jobs=3, interval="10s")
    assert (adapt.minimum, adapt.maximum) == (0, 6)


def test_scheduler_options(opens: Opens) -> None:
    with kept_port() as port:
        cluster = opens(scheduler_options={"interface": "lo", "port": port})
    assert cluster.scheduler_address == f"tls://127.0.0.1:{port}"
    options = cluster.scheduler_spec["options"]
    assert (options["interface"], options["port"], options["host"]) == ("lo", port, None)


def test_scheduler_options_interface(opens: Opens) -> None:
    cluster = opens(interface="lo")
    with distributed.Client(cluster) as dask:
        cluster.scale(1)
        dask.wait_for_workers(1, timeout=PATIENCE)
        (address,) = dask.scheduler_info()["workers"]
        assert address.startswith("tls://127.0.0.1:")
    host = opens(interface="worker-interface", scheduler_options={"host": "127.0.0.1"})
    assert host.scheduler.ip == "127.0.0.1"
    assert "interface" not in host.scheduler_spec["options"]


def test_security(opens: Opens, tmp_path: Path) -> None:
    made = distributed.Security.temporary()
    for name in ("tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key"):
        (tmp_path / name).write_text(getattr(made, name))
    ca, cert, key = (str(tmp_path / name) for name in ("tls_ca_file", "tls_scheduler_cert", "tls_scheduler_key"))
    roles = {
        f"tls_{role}_{part}": path for role in ("scheduler", "worker", "client") for part, path in (("cert", cert), ("key", key))
    }
    security = distributed.Security(tls_ca_file=ca, require_encryption=True, **roles)
    cluster = opens(security=security, protocol="tls")
    cluster.scale(jobs=1)
    with distributed.Client(cluster, security=security) as dask:
        assert dask.submit(lambda x: x + 1, 10).result(PATIENCE) == 11


def test_security_temporary(opens: Opens, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="shared_temp_directory changes nothing"):
        cluster = opens(security=True, protocol="tls://", shared_temp_directory=str(tmp_path))
    cluster.scale(jobs=1)
    with distributed.Client(cluster) as dask:
        assert dask.submit(lambda x: x + 1, 10).result(PATIENCE) == 11


def test_wrong_parameter_error(opens: Opens) -> None:
    with pytest.raises(Invalid, match="wrong_parameter"):
        opens(wrong_parameter="wrong_parameter_value")


def test_log_directory(opens: Opens, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="carrel logs JOB"):
        opens(log_directory=str(tmp_path))


def test_dashboard_link(opens: Opens) -> None:
    link = opens(scheduler_options={"dashboard_address": "127.0.0.1:0"}).dashboard_link
    assert link.startswith("http://127.0.0.1:")
