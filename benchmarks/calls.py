"""Calls of functions: how long one takes on a warm worker, how many there are in a second, how fast a large array travels.

`python benchmarks/calls.py`. In the same run `concurrent.futures.ProcessPoolExecutor`, which writes nothing down; and Dask,
Parsl and submitit where the environment variable PEERS names a Python that has them. The array goes there and comes back; a plain
copy of a file of its size, beside it, goes once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import carrel
from carrel import Client
from carrel.testing.lab_process import start_lab
from figure import Figure, median, percentile

WORKERS = 2
#: Calls one after the other; all at once; bytes of the array.
ONE_BY_ONE, AT_ONCE, ARRAY = 200, 1000, 1_000_000_000


def plus_one(number: int) -> int:
    return number + 1


def one_by_one(executor: Executor) -> list[float]:
    """Milliseconds from submit to result, one call after the other."""
    times = []
    for number in range(ONE_BY_ONE):
        began = time.perf_counter()
        executor.submit(plus_one, number).result()
        times.append(1000 * (time.perf_counter() - began))
    return times


def at_once(executor: Executor) -> float:
    """Calls a second."""
    began = time.perf_counter()
    for future in [executor.submit(plus_one, number) for number in range(AT_ONCE)]:
        future.result()
    return AT_ONCE / (time.perf_counter() - began)


def measure(scratch: Path) -> list[Figure]:
    """All figures."""
    lab = start_lab(scratch / "home", "--cpus", "4", simulate_gpus=0)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            return [*_calls(client), *_array(client, scratch), *_others()]
    finally:
        lab.end_jobs()
        lab.stop()


def _calls(client: Client) -> list[Figure]:
    with carrel.Executor(WORKERS, requirements=[], modules=[sys.modules[__name__]], memory="512M", client=client) as executor:
        return figures("Carrel", executor)


def figures(name: str, executor: Executor) -> list[Figure]:
    """The figures of one executor, whose workers are warm after the first calls."""
    at_once(executor)
    times = one_by_one(executor)
    targets: dict[str, Any] = {"at_most": 10} if name == "Carrel" else {}
    rates: dict[str, Any] = {"at_least": 300} if name == "Carrel" else {}
    return [
        median(f"{name}: warm call, submit → result", times, "ms", **targets),
        percentile(f"{name}: the same, p95", times, "ms", 95),
        Figure(name=f"{name}: {AT_ONCE} calls at once, {WORKERS} workers", value=at_once(executor), unit="/s", **rates),
    ]


def _array(client: Client, scratch: Path) -> list[Figure]:
    import numpy

    packages = [f"numpy=={version('numpy')}"]
    data = numpy.arange(ARRAY // 8, dtype="int64")
    with carrel.Executor(1, requirements=packages, modules=[], memory="6G", client=client) as executor:
        executor.submit(abs, 1).result()
        times = [_seconds(lambda: executor.submit(lambda array: array, data).result()) for _ in range(3)]
    copies = _copies(scratch, data)
    rate, copied = 2 * ARRAY / min(times) / 1e9, ARRAY / min(copies) / 1e9
    return [
        Figure(name="a 1 GB array there and back, each way", value=rate, unit="GB/s"),
        Figure(name="a copy of a file of its size", value=copied, unit="GB/s"),
        Figure(name="array ÷ file", value=rate / copied, unit="×", at_least=0.5),
    ]


def _copies(scratch: Path, data: Any) -> Sequence[float]:
    source, target = scratch / "source", scratch / "target"
    data.tofile(source)
    return [_seconds(lambda: shutil.copyfile(source, target)) for _ in range(3)]


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _others() -> list[Figure]:
    with ProcessPoolExecutor(WORKERS) as executor:
        found = figures("ProcessPoolExecutor", executor)
    if peers := os.environ.get("PEERS"):
        program = Path(__file__).with_name("calls_peers.py")
        path = f"{Path(peers).parent}{os.pathsep}{os.environ['PATH']}"  # Parsl starts a program by its name
        environment = {**os.environ, "PATH": path}
        said = subprocess.run([peers, program], capture_output=True, text=True, check=True, env=environment).stdout
        found += [Figure(**row) for row in json.loads(said.splitlines()[-1])]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory:
        for figure in measure(Path(directory)):
            print(figure.row(), flush=True)
