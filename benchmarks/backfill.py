"""What backfill with more promises, or by expected times, does to waits: `python benchmarks/backfill.py`.

Muri's third trace and generated jobs, on 64 GPUs, with the preset "default". Of those who were promised a start at some time,
this says how many got it later than they were promised first, and by how much over all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from unittest.mock import patch

from carrel.core.domain.placement import Start
from carrel.core.policy.placer import Placer
from carrel.lab.server.rules import read_lab_rules
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, Trace
from foreign_traces import read_trace
from generator import generate_jobs

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
CLUSTER = Cluster(nodes=8, gpus_per_node=8)
SEEDS = (1, 2, 3)
JOBS = 3_000
LOAD = 0.8
PROMISES = (1, 3, 10)
TIMES = ("walltime", "expected")
#: Seconds that a job counts as at least in its slowdown.
SHORTEST = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """One simulation."""

    trace: str
    promises: int
    times: str
    mean_wait: float
    p95_wait: float
    #: Mean of completion over run time, which counts as `SHORTEST` at least.
    slowdown: float
    promised: int
    #: Jobs that started later than they were promised first, and seconds over all that were promised something.
    late: int
    late_by: float
    cpu_seconds: float


def run(trace: Trace, promises: int, times: str) -> Row:
    """Simulate `trace` under one rule."""
    rules = replace(read_lab_rules(None), promises=promises, backfill_times=times)
    first: dict[int, float] = {}
    place = Placer.place

    def watched(placer: Placer, now: float) -> Sequence[Start]:
        starts = place(placer, now)
        for promise in placer.promises:
            first.setdefault(promise.job.id, promise.at)
        return starts

    begin = process_time()
    with patch.object(Placer, "place", watched):
        runs = simulate_lab(rules, trace, nodes_of(CLUSTER)).runs
    seconds = process_time() - begin
    waits = sorted(one.wait for one in runs)
    late = [one.start - first[one.id] for one in runs if one.id in first and one.start > first[one.id] + 1]
    return Row(
        trace=trace.name,
        promises=promises,
        times=times,
        mean_wait=sum(waits) / len(waits),
        p95_wait=waits[int(0.95 * len(waits))],
        slowdown=sum(max(1.0, one.completion / max(one.ran, SHORTEST)) for one in runs) / len(runs),
        promised=len(first),
        late=len(late),
        late_by=sum(late) / max(1, len(first)),
        cpu_seconds=seconds,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--promises", type=int, nargs="*", default=PROMISES)
    traces = [read_trace(TRACES / "muri" / "trace3.csv")]
    traces += [generate_jobs(seed, jobs=JOBS, gpus=64, load=LOAD) for seed in SEEDS]
    print("trace | promises | times | mean wait | p95 | slowdown | promised | late | late by | CPU")
    for promises in parser.parse_args().promises:
        for times in TIMES:
            for trace in traces:
                row = run(trace, promises, times)
                late = f"{100 * row.late / max(1, row.promised):.1f} %"
                print(
                    f"{row.trace} | {promises} | {times} | {row.mean_wait:,.0f} s | {row.p95_wait:,.0f} s | {row.slowdown:.1f} | "
                    f"{row.promised} | {late} | {row.late_by:,.0f} s | {row.cpu_seconds:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
