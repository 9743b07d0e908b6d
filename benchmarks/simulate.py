"""Time and memory of `carrel simulate` under the lab's own policy: `python benchmarks/simulate.py`.

Generated jobs of 40 users on nodes of 8 GPUs, with the preset "default". Each simulation is a process of its own, so that its
peak of memory is its own; the time is that of the simulation alone, without generating the jobs. The two sizes that are compared
are run in turns, so that a machine that slows down slows both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

from figure import Figure

GPUS = 2000
JOBS = 100_000
LOAD = 0.9
TURNS = 3

_ONE = """
import json, resource, sys, time
from pathlib import Path
from carrel.lab.server.rules import read_lab_rules
from generator import generate_jobs
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster

jobs, gpus, load = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
trace = generate_jobs(1, jobs=jobs, gpus=gpus, load=load)
rules = read_lab_rules(Path("no such file"))
begin = time.perf_counter()
outcome = simulate_lab(rules, trace, nodes_of(Cluster(nodes=gpus // 8, gpus_per_node=8)))
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
waits = sum(run.wait for run in outcome.runs) / len(outcome.runs)
print(json.dumps({"seconds": seconds, "peak": peak, "ended": len(outcome.runs), "wait": waits}))
"""


def simulate(jobs: int, gpus: int, load: float) -> dict[str, float]:
    """One simulation, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _ONE, str(jobs), str(gpus), str(load)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(_scratch: Path) -> list[Figure]:
    """The figures of `make bench`."""
    full, half = [], []
    for _ in range(TURNS):
        half.append(simulate(JOBS // 2, GPUS, LOAD))
        full.append(simulate(JOBS, GPUS, LOAD))
    seconds = [one["seconds"] for one in full]
    ratios = [one["seconds"] / other["seconds"] for one, other in zip(full, half, strict=True)]
    crowded = simulate(JOBS, GPUS, 1.2)
    what = f"{JOBS:,} jobs on {GPUS:,} GPUs"
    return [
        Figure(
            name=f"simulation of {what}",
            value=median(seconds),
            unit="s",
            spread=f"{min(seconds):.3g} to {max(seconds):.3g}, n={TURNS}, mean wait {full[0]['wait'] / 60:.0f} min",
            at_most=60.0,
        ),
        Figure(name="its memory", value=max(one["peak"] for one in full) / 1e9, unit="GB", at_most=1.0),
        Figure(
            name="twice the jobs, times the time",
            value=median(ratios),
            unit="×",
            spread=f"{min(ratios):.3g} to {max(ratios):.3g}, n={TURNS}",
            at_most=2.4,
        ),
        Figure(
            name=f"simulation of {what} that are offered 1.2 times what they can do",
            value=crowded["seconds"],
            unit="s",
            spread=f"mean wait {crowded['wait'] / 86400:.0f} d",
        ),
    ]


if __name__ == "__main__":
    for figure in measure(Path()):
        print(figure.row())
