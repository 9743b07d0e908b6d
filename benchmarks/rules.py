"""Rules beside each other on every trace that is named: `python benchmarks/rules.py FILE or DIRECTORY ...`.

Without a file: Muri's third trace and generated jobs of 40 users, on 64 GPUs at a load of 0.9. `carrel` is the preset "default";
the rows below it change one thing each. "wrong" multiplies each prediction by a number between a quarter and four, the same for
a job whenever it is asked for. Waits count all time in which a job does not run. A job that was stopped has its GPUs for a minute
(`MOVE_TIME`) before it goes on, whatever the rule.

`--deal SEED` deals the jobs of traces that name no users to 20, of whom the n-th submits in proportion to 1/n, and runs each
trace on machines that it keeps busy where it names none. `--rules easy carrel` runs these alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import patch

from baselines import simulate_baseline
from carrel.core.control import ranking
from carrel.core.domain.expectation import Expected
from carrel.core.domain.placement import Waiting
from carrel.core.domain.rules import LabRules
from carrel.core.policy.short_first import late_by
from carrel.lab.server.rules import read_lab_rules
from carrel.simulate.equal_part import completions_alone
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.measures import Measures, Spread, measure
from carrel.simulate.study import EASY_RULES, MOVE_TIME
from carrel.simulate.trace import Cluster, Outcome, Trace
from foreign_traces import read_trace
from generator import generate_jobs
from start_ranges import cluster_of, named

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
CLUSTER = Cluster(nodes=8, gpus_per_node=8)
FIELD = ("fifo", "first-fit", "srtf", "tiresias")
WRONG = "short_first 1, wrong"
SEEDS = (1, 2, 3)
JOBS, LOAD = 1500, 0.9


def short_first(rules: LabRules, factor: float) -> LabRules:
    """The rules with short jobs first in every class of service."""
    return replace(rules, qos={name: replace(qos, short_first=factor) for name, qos in rules.qos.items()})


def wrong(job: Waiting, factor: float, expected: Expected | None) -> float:
    """As `late_by`, by predictions that are wrong."""
    return late_by(job, factor * 4.0 ** Random(job.id).uniform(-1, 1), expected)


def runs(trace: Trace, cluster: Cluster, wanted: Collection[str] = ()) -> Iterator[tuple[str, Outcome]]:
    """The trace under each rule, or under those that are `wanted`."""
    rules, nodes = read_lab_rules(None), nodes_of(cluster)
    for policy in FIELD:
        if not wanted or policy in wanted:
            yield policy, simulate_baseline(policy, trace, cluster, move=MOVE_TIME)
    changed: Sequence[tuple[str, LabRules]] = (
        ("easy", EASY_RULES),
        ("carrel", rules),
        ("promises 3", replace(rules, promises=3)),
        ("expected times", replace(rules, backfill_times="expected")),
        ("short_first 0.1", short_first(rules, 0.1)),
        ("short_first 1", short_first(rules, 1.0)),
        ("short_first 1, promises 3", replace(short_first(rules, 1.0), promises=3)),
    )
    for name, one in changed:
        if not wanted or name in wanted:
            yield name, simulate_lab(one, trace, nodes, move=MOVE_TIME)
    if wanted and WRONG not in wanted:
        return
    with patch.object(ranking, "late_by", wrong):
        yield WRONG, simulate_lab(short_first(rules, 1.0), trace, nodes)


def works(files: Sequence[Path], gpus: int, deal: int | None = None) -> Iterator[tuple[Trace, Cluster]]:
    """What is simulated."""
    for file in [found for path in files for found in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]:
        trace = read_trace(file)
        if deal is None:
            yield trace, trace.cluster or Cluster(nodes=gpus // 8, gpus_per_node=8)
        else:
            yield named(trace, "own", deal), cluster_of(trace)
    if not files:
        yield read_trace(TRACES / "muri" / "trace3.csv"), CLUSTER
        for seed in SEEDS:
            yield generate_jobs(seed, jobs=JOBS, gpus=CLUSTER.gpus, load=LOAD), CLUSTER


def _hours(spread: Spread | None, value: Callable[[Spread], float]) -> str:
    return "-" if spread is None else f"{value(spread) / 3600:.1f}"


def _row(trace: Trace, name: str, one: Measures) -> str:
    waits = [_hours(one.wait_seconds, value) for value in (lambda it: it.mean, lambda it: it.p95, lambda it: it.max)]
    slowdown = "-" if one.bounded_slowdown is None else f"{one.bounded_slowdown.mean:.1f}"
    fairness = f"{one.finish_time_fairness:.1f}" if one.finish_time_fairness is not None and len(one.users) > 1 else "-"
    cells = [
        trace.name,
        name,
        *waits,
        _hours(one.completion_seconds, lambda it: it.mean),
        slowdown,
        f"{one.makespan_seconds / 3600:.0f}",
        fairness,
        str(one.preemptions),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--gpus", type=int, default=64, help="for traces that name no machines")
    parser.add_argument("--deal", type=int, metavar="SEED", help="deal jobs to users where the trace names none")
    parser.add_argument("--rules", nargs="+", metavar="RULE", default=(), help="run these alone, by their names in the table")
    asked = parser.parse_args()
    print(
        "| trace | rule | wait, mean (h) | p95 (h) | longest (h) | JCT, mean (h) | slowdown | makespan (h) | fairness | stops |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for trace, cluster in works(asked.files, asked.gpus, asked.deal):
        alone = completions_alone(trace, cluster.gpus)
        for name, outcome in runs(trace, cluster, asked.rules):
            print(_row(trace, name, measure(outcome, trace, alone=alone)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
