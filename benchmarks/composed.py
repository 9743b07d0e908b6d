"""How many GPUs machines from parts save at equal waits: `python benchmarks/composed.py FILE or DIRECTORY ... [--small 0.25]`.

Each trace runs on the nodes that it was recorded on (of 8 GPUs, as many as it keeps busy where that is not known), and then with
other layouts on as few GPUs as do as well, by mean and 95th percentile of all waits (`carrel.simulate.composed`). `--small` are
parts of the jobs on one GPU for which a seventh would do: no public trace says how many do.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from carrel.core.domain.units import format_duration
from carrel.simulate.composed import ATTACH_SECONDS, compare_layouts
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.study import EASY_RULES
from carrel.simulate.trace import Cluster
from foreign_traces import read_trace
from start_ranges import cluster_of


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--small", nargs="*", type=float, default=[0.25, 0.5])
    parser.add_argument("--attach", type=float, default=ATTACH_SECONDS, help="seconds in which a machine is made")
    parser.add_argument("--nodes", nargs="*", type=int, help="nodes of 8 GPUs; several numbers are tried one after the other")
    asked = parser.parse_args()
    files = [file for path in asked.paths for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    print("| trace | small | layout | GPUs | cut | saved | mean wait | p95 wait |\n|---|---:|---|---:|---:|---:|---:|---:|")
    for file in files:
        trace = read_trace(file)
        sizes = [cluster_of(trace), *(Cluster(nodes=count, gpus_per_node=8) for count in asked.nodes or ())][bool(asked.nodes) :]
        for size, small in product(sizes, asked.small):
            for one in compare_layouts(trace, nodes_of(size), EASY_RULES, small=small, attach=asked.attach):
                mean, p95 = (format_duration(seconds) for seconds in (one.wait_seconds.mean, one.wait_seconds.p95))
                row = (file.stem, f"{100 * small:.0f} %", one.layout, one.gpus, one.cut, f"{100 * one.saved:.0f} %", mean, p95)
                print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
