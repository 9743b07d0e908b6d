"""Calls of functions: how long one takes on a warm worker, how many there are in a second, how fast a large array travels.

`python benchmarks/calls.py` (`python benchmarks/calls.py array`: the array alone). In the same run
`concurrent.futures.ProcessPoolExecutor`, which writes nothing down; and Dask, Parsl and submitit where the environment variable
PEERS names a Python that has them. The array goes there and comes back; a plain copy of a file of its size, beside it, goes once.
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
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import carrel
import plus
from carrel import Client
from carrel.client import body_files
from figure import Figure, median, percentile
from plus import plus_one
from support.lab_process import start_lab

WORKERS = 2
#: Calls one after the other; all at once; bytes of the array.
ONE_BY_ONE, AT_ONCE, ARRAY = 200, 1000, 1_000_000_000
#: Times that the array goes each way.
ROUNDS = 4


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


def measure(scratch: Path, *, array_alone: bool = False) -> list[Figure]:
    """All figures, or those of the array."""
    lab = start_lab(scratch / "home", "--cpus", "8", simulate_gpus=2)
    try:
        with Client(url=lab.url, token=lab.token) as client, Client(url=lab.url, token=lab.token) as elsewhere:
            if array_alone:
                return _array(client, elsewhere, scratch)
            return [*_calls(client), *_leases(client), *_array(client, elsewhere, scratch), *_others()]
    finally:
        lab.end_jobs()
        lab.stop()


def _calls(client: Client) -> list[Figure]:
    with carrel.Executor(WORKERS, requirements=[], modules=[plus], memory="512M", client=client) as executor:
        return figures("Carrel", executor)


def _one(executor: Executor, number: int) -> None:
    executor.submit(plus_one, number).result()


def _leases(client: Client) -> list[Figure]:
    """Calls that borrow a GPU each, and as many of a worker that has one of its own, in turns."""
    options: dict[str, Any] = {"requirements": [], "modules": [plus], "memory": "512M", "client": client}
    times: dict[bool, list[float]] = {False: [], True: []}
    with (
        carrel.Executor(1, gpus=1, reserve=True, **options) as reserved,
        carrel.Executor(1, gpus=1, **options) as borrowing,
    ):
        for executor in (reserved, borrowing):
            for number in range(20):
                executor.submit(plus_one, number).result()
        for number in range(ONE_BY_ONE):
            for executor in (reserved, borrowing):
                times[executor is borrowing] += [1000 * _seconds(partial(_one, executor, number))]
    return [
        median("Carrel: warm call with a GPU of the worker's own", times[False], "ms"),
        median("Carrel: warm call that borrows one", times[True], "ms"),
    ]


def figures(name: str, executor: Executor, at_most: float | None = None) -> list[Figure]:
    """The figures of one executor, whose workers are warm after the first calls; `at_most`: the target of a warm call (ms)."""
    at_once(executor)
    times = one_by_one(executor)
    most = 10 if name == "Carrel" else at_most
    targets: dict[str, Any] = {"at_most": most} if most else {}
    rates: dict[str, Any] = {"at_least": 300} if name == "Carrel" else {}
    return [
        median(f"{name}: warm call, submit → result", times, "ms", **targets),
        percentile(f"{name}: the same, p95", times, "ms", 95),
        Figure(name=f"{name}: {AT_ONCE} calls at once, {WORKERS} workers", value=at_once(executor), unit="/s", **rates),
    ]


def _array(client: Client, elsewhere: Client, scratch: Path) -> list[Figure]:
    import numpy

    packages = [f"numpy=={version('numpy')}"]
    data = numpy.arange(ARRAY // 8, dtype="int64")
    options: dict[str, Any] = {"requirements": packages, "modules": [], "memory": "6G"}
    with (
        carrel.Executor(1, client=client, **options) as executor,
        carrel.Executor(1, client=elsewhere, **options) as distant,
    ):
        for one in (executor, distant):
            one.submit(abs, 1).result()
        source, target = scratch / "source", scratch / "target"
        data.tofile(source)
        # In turns: what the disk still has to write of one slows the next.
        ways: list[tuple[list[float], Callable[[], object]]] = [
            ([], lambda: executor.submit(lambda array: array, data).result()),
            ([], lambda: shutil.copyfile(source, target)),
            ([], lambda: _by_http(lambda: distant.submit(lambda array: array, data).result())),
        ]
        for _ in range(ROUNDS):
            for times, way in ways:
                times.append(_seconds(way))
    (arrays, _), (copies, _), (http, _) = ways
    rate, copied, slow = 2 * ARRAY / min(arrays) / 1e9, ARRAY / min(copies) / 1e9, 2 * ARRAY / min(http) / 1e9
    return [
        Figure(name="a 1 GB array there and back, each way", value=rate, unit="GB/s", spread=_spread(arrays)),
        Figure(name="the same where the caller is on another machine (HTTP)", value=slow, unit="GB/s", spread=_spread(http)),
        Figure(name="a copy of a file of its size", value=copied, unit="GB/s", spread=_spread(copies)),
        Figure(name="array ÷ file", value=rate / copied, unit="×", at_least=0.5),
    ]


def _spread(times: Sequence[float]) -> str:
    return " ".join(f"{one:.2f}" for one in times) + " s"


def _by_http(work: Callable[[], object]) -> None:
    """As on another machine: no socket of the lab's is there for the caller."""

    def not_here(*_: Any) -> Any:
        raise body_files.NotHere("as on another machine")

    with patch.multiple(body_files, read=not_here, write=not_here):
        work()


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
        for figure in measure(Path(directory), array_alone="array" in sys.argv[1:]):
            print(figure.row(), flush=True)
