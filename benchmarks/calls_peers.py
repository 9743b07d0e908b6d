"""Runs in an environment of its own, with the libraries that `calls.py` compares with; the last line has the figures as JSON."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

WORKERS, ONE_BY_ONE, AT_ONCE = 2, 200, 1000
SUBMITIT = 5


def plus_one(number: int) -> int:
    return number + 1


def figures(name: str, submit: Callable[[int], Any], one_by_one: int, at_once: int) -> list[dict[str, Any]]:
    for future in [submit(number) for number in range(min(at_once, 50))]:
        future.result()
    times = []
    for number in range(one_by_one):
        began = time.perf_counter()
        submit(number).result()
        times.append(1000 * (time.perf_counter() - began))
    began = time.perf_counter()
    for future in [submit(number) for number in range(at_once)]:
        future.result()
    rate = at_once / (time.perf_counter() - began)
    spread = f"{min(times):.4g} to {max(times):.4g}, n={len(times)}"
    return [
        {"name": f"{name}: warm call, submit → result", "value": statistics.median(times), "unit": "ms", "spread": spread},
        {"name": f"{name}: {at_once} calls at once", "value": rate, "unit": "/s"},
    ]


def dask() -> list[dict[str, Any]]:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=WORKERS, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        return figures("Dask", lambda number: client.submit(plus_one, number, pure=False), ONE_BY_ONE, AT_ONCE)


def parsl() -> list[dict[str, Any]]:
    import parsl
    from parsl import Config, HighThroughputExecutor
    from parsl.providers import LocalProvider

    executor = HighThroughputExecutor(
        address="127.0.0.1", max_workers_per_node=WORKERS, provider=LocalProvider(init_blocks=1, max_blocks=1)
    )
    with tempfile.TemporaryDirectory() as directory, parsl.load(Config(executors=[executor], run_dir=directory)):
        return figures("Parsl", parsl.python_app(plus_one), ONE_BY_ONE, AT_ONCE)


def submitit() -> list[dict[str, Any]]:
    import submitit

    with tempfile.TemporaryDirectory() as directory:
        executor = submitit.LocalExecutor(directory)
        return figures("submitit (local)", lambda number: executor.submit(plus_one, number), SUBMITIT, SUBMITIT)


if __name__ == "__main__":
    print(json.dumps([*dask(), *parsl(), *submitit()]))
