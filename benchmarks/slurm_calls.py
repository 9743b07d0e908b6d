"""Calls of functions whose workers are jobs of a real Slurm cluster on this machine: how long one takes, how many in a second.

`python benchmarks/slurm_calls.py`. Then workers of the lab's own machine, which is the same one: the difference is what the
cluster adds once a worker is there. A call on a warm worker does not pass through Slurm.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import calls
import carrel
import plus
from carrel import Client
from figure import Figure
from support.lab_process import start_lab
from support.slurm_site import SlurmSite

_RULES = """
[partitions.here]
[partitions.batch]
engine = "slurm"
slurm_partition = "main"
[partitions.held]
engine = "slurm"
slurm_partition = "main"
slurm_immediate = true
"""
#: What each partition is, and the longest median of a warm call there (ms).
_PARTITIONS = {"held": "an allocation that is held", "batch": "batch jobs", "here": "the lab's own machine"}
_TARGETS = {"held": 40.0}


def first_call(executor: carrel.Executor) -> float:
    """Seconds until there is a worker and its first result."""
    began = time.perf_counter()
    executor.submit(abs, -1).result()
    return time.perf_counter() - began


def measure(home: Path, site: SlurmSite) -> list[Figure]:
    """All figures."""
    found: list[Figure] = []
    (home / "carrel.toml").write_text(_RULES)
    lab = start_lab(home, "--cpus", "4", simulate_gpus=0, variables={"SLURM_CONF": str(site.layout.conf)})
    try:
        with Client(url=lab.url, token=lab.token) as client:
            for partition, name in _PARTITIONS.items():
                options = {"requirements": [], "modules": [plus], "memory": "256M", "client": client}
                with carrel.Executor(2, partition=partition, **options) as executor:
                    first = Figure(name=f"{name}: first call", value=first_call(executor), unit="s")
                    found += [first, *calls.figures(name, executor, at_most=_TARGETS.get(partition))]
    finally:
        lab.end_jobs()
        lab.stop()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="carrel-bench-") as directory, SlurmSite(nodes=2) as site:
        for figure in measure(Path(directory), site):
            print(figure.row(), flush=True)
        print(f"load {os.getloadavg()[0]:.0f}")
