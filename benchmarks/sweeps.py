"""Sweeps: how long 100 trials of nothing take, and what choosing their parameters costs.

`python benchmarks/sweeps.py`. In the same run 100 jobs that a client submits, as many at once: what a trial costs beside its job.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from carrel import Client
from carrel.core.domain.distribution import read_distribution
from carrel.core.domain.sweep import Sampler, Sweep, SweepSpec, Trial, TrialState
from carrel.lab.studies import OptunaStudy
from carrel.testing.waiting import wait_until
from carrel.wire import v1
from figure import Figure, median
from support.lab_process import start_lab

TRIALS, AT_ONCE = 100, 8
_RESOURCES = v1.ResourceRequest(memory="64M", cpus=1)
_DISTRIBUTIONS = {"x": "uniform(0, 1)", "y": "loguniform(1e-5, 1)", "n": "int(1, 100)"}
_REPORT = """
import json, os, sys, urllib.request
url = f"{os.environ['CARREL_URL']}/api/v1/sweeps/{os.environ['CARREL_SWEEP']}/trials/{os.environ['CARREL_TRIAL']}/values"
headers = {"Authorization": "Bearer " + os.environ["CARREL_TOKEN"], "Content-Type": "application/json"}
body = json.dumps({"values": [{"step": 0, "value": float(sys.argv[sys.argv.index("--x") + 1])}]}).encode()
urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
"""


def measure(scratch: Path) -> list[Figure]:
    """All figures."""
    lab = start_lab(scratch / "home", "--cpus", str(AT_ONCE), simulate_gpus=0)
    try:
        with Client(url=lab.url, token=lab.token) as client:
            (scratch / "train.py").write_text(_REPORT)
            (scratch / "nothing.py").write_text("")
            swept = [_sweep(client, scratch, sampler) for sampler in ("random", "tpe")]
            plain = _jobs(client, scratch)
    finally:
        lab.end_jobs()
        lab.stop()
    return [
        Figure(name=f"{TRIALS} trials, {AT_ONCE} at once, random", value=swept[0], unit="s"),
        Figure(name=f"{TRIALS} trials, {AT_ONCE} at once, tpe", value=swept[1], unit="s"),
        Figure(name=f"{TRIALS} jobs, {AT_ONCE} at once, by a client", value=plain, unit="s"),
        *(_choice(sampler, trials) for sampler in (Sampler.RANDOM, Sampler.TPE) for trials in (TRIALS, 1000)),
    ]


def _sweep(client: Client, scratch: Path, sampler: str) -> float:
    options = {"metric": "loss", "trials": TRIALS, "parallel": AT_ONCE, "sampler": sampler}
    began = time.perf_counter()
    sweep = client.sweep_project(scratch / "train.py", distributions=_DISTRIBUTIONS, options=options, resources=_RESOURCES)
    wait_until(lambda: client.sweep(sweep.id).state != "RUNNING", timeout=600)
    assert client.sweep(sweep.id).counts == {"COMPLETED": TRIALS}
    return time.perf_counter() - began


def _jobs(client: Client, scratch: Path) -> float:
    def one(_number: int) -> None:
        job = client.submit_project(scratch / "nothing.py", resources=_RESOURCES)
        client.wait(job.id, timeout=600)

    began = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(one, range(TRIALS)))
    return time.perf_counter() - began


def _choice(sampler: Sampler, trials: int) -> Figure:
    """Processor time for one choice after so many trials."""
    parameters = {name: read_distribution(name, text) for name, text in _DISTRIBUTIONS.items()}
    spec = SweepSpec(name="s", parameters=parameters, trials=9999, parallel=8, metric="loss", sampler=sampler)
    sweep, study = Sweep(id=1, owner="a", spec=spec, created_at=0.0), OptunaStudy()
    made = [
        Trial(
            number=number,
            parameters={"x": number / trials, "y": 1 / number, "n": 1 + number % 100},
            state=TrialState.COMPLETED,
            value=number % 7,
            created_at=0.0,
        )
        for number in range(1, trials + 1)
    ]
    times = []
    for _ in range(10):
        began = time.process_time()
        study.suggest(sweep, made, {one.number: {0: 1.0} for one in made})
        times.append(1000 * (time.process_time() - began))
    return median(f"a choice of {sampler} after {trials} trials", times, "ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory:
        for figure in measure(Path(directory)):
            print(figure.row(), flush=True)
