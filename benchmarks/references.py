"""The field's policies against published results, and notebooks of a recorded week: `python benchmarks/references.py [DIR]`.

The directory has `muri/trace3.csv` and `reference/muri-trace3-*.csv` (tests/data/traces, which is the default, says where they
come from): start and end of each of 992 jobs by the simulators of Tiresias and Muri. Where it has `notebookos/*.csv` too (cells
of a week of the NotebookOS project, github.com/ds2-lab/NotebookOS-Dashboard), these are formed into sessions and run as Carrel's
broker lends, which takes minutes.
"""

from __future__ import annotations

import argparse
import csv
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import fmean

from baselines import simulate_baseline
from carrel.simulate.notebooks.by_policy import gpus_needed
from carrel.simulate.notebooks.cells import LINGER, NotebookSession
from carrel.simulate.trace import Cluster, TraceJob
from foreign_traces import read_trace

HERE = Path(__file__).parents[1] / "tests" / "data" / "traces"
CLUSTER = Cluster(nodes=8, gpus_per_node=8)
#: By policy: the name of its reference, how run times are read, and by how many seconds an end may differ.
REFERENCES = {
    "fifo": ("fifo", "muri", 0.0),
    "first-fit": ("fjf", "muri", 0.0),
    "srtf": ("srtf", "muri-iterations", 1e-3),
    "srsf": ("srsf", "muri-iterations", 1e-3),
    "tiresias": ("tiresias", "muri-iterations", 1e-3),
}


def reference(directory: Path, name: str) -> dict[int, tuple[float, float]]:
    """Start and end of each job."""
    with (directory / "reference" / f"muri-trace3-{name}.csv").open() as file:
        return {int(row["job_id"]): (float(row["start_time"]), float(row["end_time"])) for row in csv.DictReader(file)}


def form_sessions(cells: Sequence[TraceJob], *, gap: float = 4 * 3600.0) -> Sequence[NotebookSession]:
    """Return sessions for cells of which nobody recorded the session, in the order in which they open.

    In order of submission, each cell joins a session of as many GPUs that is idle, and whose last cell ended at most `gap`
    seconds ago: of several the one that ended last. Where there is none it opens a session. This is an assumption, but what
    GPUs are needed where each cell borrows its own hardly depends on it.
    """
    formed: list[list[TraceJob]] = []
    #: By GPUs: (end of the last cell, number of the session), in order.
    ends: dict[int, list[tuple[float, int]]] = {}
    for job in sorted(cells, key=lambda job: job.submitted):
        here = ends.setdefault(job.gpus, [])
        first, behind = bisect_left(here, (job.submitted - gap, -1)), bisect_right(here, (job.submitted, inf))
        if first < behind:
            _, number = here.pop(behind - 1)
        else:
            number = len(formed)
            formed.append([])
        formed[number].append(job)
        insort(here, (job.submitted + job.duration, number))
    return [
        NotebookSession(
            name=str(number),
            gpus=jobs[0].gpus,
            opens=jobs[0].submitted,
            thinks=[
                0.0,
                *(job.submitted - before.submitted - before.duration for before, job in pairwise(jobs)),
            ],
            computes=[job.duration for job in jobs],
            linger=LINGER,
        )
        for number, jobs in enumerate(formed)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=HERE)
    directory: Path = parser.parse_args().directory
    wrong = 0
    print("| policy | JCT, mean (s) | wait, mean (s) | jobs that differ from the reference |\n|---|---:|---:|---:|")
    for policy, (name, form, tolerance) in REFERENCES.items():
        runs = simulate_baseline(policy, read_trace(directory / "muri" / "trace3.csv", form=form), CLUSTER).runs
        expected = reference(directory, name)
        differ = sum(
            abs(run.start - expected[run.id][0]) > tolerance or abs(run.end - expected[run.id][1]) > tolerance for run in runs
        ) + abs(len(expected) - len(runs))
        wrong += differ
        jct, wait = fmean(run.completion for run in runs), fmean(run.wait for run in runs)
        print(f"| {policy} | {jct:,.2f} | {wait:,.2f} | {differ} of {len(expected)} |", flush=True)
    for file in sorted((directory / "notebookos").glob("*.csv")):
        sessions = form_sessions(read_trace(file, form="tiresias").jobs)
        print(
            f"\n{file.name}: {len(sessions)} sessions\n\n| mode | GPUs for no wait | GPUs for ≤ 1 min |\n|---|---:|---:|",
            flush=True,
        )
        for mode, homes_move in (("carrel", False), ("carrel, homes move", True)):
            none = gpus_needed(sessions, p95_wait=0.0, homes_move=homes_move)
            print(f"| {mode} | {none} | {gpus_needed(sessions, p95_wait=60.0, homes_move=homes_move, near=none)} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
