"""Do jobs start when they were told? `python benchmarks/start_ranges.py [TRACE ...]`.

A lab is simulated. Whoever has to wait is told at the submission when the job should start, and between which two moments with a
probability of 80 %, from what has been learned from the jobs that had ended by then. The range should hold in 75 to 85 of 100
cases. The first tenth of the jobs, of which nothing is known yet, is not counted.

Without a trace the jobs are generated, which is what `make bench` measures. A trace is any file that `foreign_traces` reads. The
virtual clusters of Philly are not in the repository: name where yours are. Where a trace names no users, its jobs are
dealt to `USERS`, of whom the n-th submits in proportion to 1/n, and are called as `--names` says:

    one      every job is `train.py`
    ten      one of ten names, each as likely, whatever the job is
    unique   no name comes twice
    own      as the trace has it (Muri: the model)

Submissions are drawn together or apart until the jobs' GPU-time is the share `--loads` of all. Walltimes are those of the trace,
or the next ones that people write (`carrel.simulate.lab.walltime`); `--walltime 30d` gives all the same, as where nobody knows.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

from carrel.core.domain.placement import Wait
from carrel.core.domain.units import parse_duration
from carrel.lab.server.rules import read_lab_rules
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, Trace
from figure import Figure
from foreign_traces import read_trace
from generator import generate_jobs

SEEDS = (1, 2, 3)
JOBS = 1200
CLUSTER = Cluster(nodes=8, gpus_per_node=8)
#: Users to whom the jobs of a trace are dealt that names none.
USERS = 20
LOADS = (0.6, 0.75, 0.9)
NAMES = ("one", "ten", "unique")
#: Where a trace does not say on what it ran, it gets so many nodes of 8 GPUs that it keeps them as busy as this by itself.
USUAL_LOAD = 0.75
#: Waits are compared as if they were so many seconds at least.
SHORTEST = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """What one owner was told, and what happened. Seconds after the submission."""

    start: float
    estimate: float | None
    between: tuple[float, float] | None
    #: The range is told in days, and not in hours and minutes.
    in_days: bool = False


def replay(trace: Trace, cluster: Cluster, *, changes: Mapping[str, Any] | None = None, every: int = 1) -> Iterator[Told]:
    """Everybody who had to wait, or those of them whose number is a multiple of `every`, under the lab's rules with `changes`."""
    rules = read_lab_rules(Path("no such file"), changes or {})
    told: dict[int, tuple[Wait, float]] = {}

    def answer(hold: Wait, now: float) -> None:
        told[hold.job_id] = (hold, now)

    outcome = simulate_lab(rules, trace, nodes_of(cluster), answer=answer, asks=lambda job_id: job_id % every == 0)
    for run in outcome.runs[len(outcome.runs) // 10 :]:
        if run.id in told:
            hold, now = told[run.id]
            between = hold.estimated_range
            yield Told(
                start=run.start - now,
                estimate=None if hold.estimated_start is None else hold.estimated_start - now,
                between=None if between is None else (between[0] - now, between[1] - now),
                in_days="; probably " in hold.reason.message,
            )


@dataclass(frozen=True, slots=True)
class Row:
    """What many answers come to."""

    waited: int
    #: Of those who waited: who was told no range.
    silent: int
    #: Shares of the others.
    early: float
    late: float
    #: Median of the upper bound over the lower one, and of the real wait over the one that was told.
    width: float
    off: float
    #: The share that is told in days.
    days: float

    @property
    def held(self) -> float:
        return 1 - self.early - self.late


def row_of(told: Sequence[Told]) -> Row | None:
    """How often the range held, how wide it was, and how good the middle of it is; None where nobody was told a range."""
    ranged = [(one, one.between) for one in told if one.between is not None]
    if not ranged:
        return None
    return Row(
        waited=len(told),
        silent=len(told) - len(ranged),
        early=sum(one.start < low - 1 for one, (low, _) in ranged) / len(ranged),
        late=sum(one.start > high + 1 for one, (_, high) in ranged) / len(ranged),
        width=median(max(high, SHORTEST) / max(low, SHORTEST) for _, (low, high) in ranged),
        days=sum(one.in_days for one, _ in ranged) / len(ranged),
        off=median(max(one.start, SHORTEST) / max(one.estimate, SHORTEST) for one, _ in ranged if one.estimate is not None),
    )


def named(trace: Trace, names: str, seed: int) -> Trace:
    """Return the trace with the jobs dealt to users where it names none, and called as `names` says."""
    drawn = random.Random(seed)
    weights = [1 / place for place in range(1, USERS + 1)]
    alone = len({job.user for job in trace.jobs}) == 1
    jobs = []
    for job in trace.jobs:
        user = f"user-{drawn.choices(range(USERS), weights)[0]}" if alone else job.user
        called = {"one": "train.py", "ten": f"train-{drawn.randrange(10)}.py", "unique": f"job-{job.id}", "own": job.name}
        jobs.append(replace(job, user=user, name=called[names]))
    return replace(trace, jobs=jobs)


def loaded(trace: Trace, cluster: Cluster, load: float) -> Trace:
    """Return the trace with its submissions drawn together or apart until the load is `load`."""
    span = fsum(job.duration * job.gpus for job in trace.jobs) / (load * cluster.gpus)
    factor = span / trace.jobs[-1].submitted
    return replace(trace, jobs=[replace(job, submitted=job.submitted * factor) for job in trace.jobs])


def cluster_of(trace: Trace) -> Cluster:
    """Return where it ran, or what it would keep busy."""
    if trace.cluster is not None:
        return trace.cluster
    busy = fsum(job.duration * job.gpus for job in trace.jobs) / trace.jobs[-1].submitted
    return Cluster(nodes=max(1, round(busy / USUAL_LOAD / 8)), gpus_per_node=8)


def measure(_scratch: Path) -> list[Figure]:
    """The figures of `make bench`."""
    found: list[Figure] = []
    for name, load, changes in (
        ("the lab's own rules", 0.8, {}),
        ("without fair share", 0.8, {"priority.share_weight": 0}),
        ("a crowded lab", 1.1, {}),
    ):
        traces = (generate_jobs(seed, jobs=JOBS, gpus=CLUSTER.gpus, load=load) for seed in SEEDS)
        row = row_of([one for trace in traces for one in replay(trace, CLUSTER, changes=changes)])
        if row is None:
            continue
        spread = (
            f"{row.waited:,} that waited; {row.early:.0%} started before it, {row.late:.0%} after it; "
            f"{row.silent} without a range; real ÷ told {row.off:.2f} in the middle; latest ÷ earliest {row.width:.1f}; "
            f"{row.days:.0%} told in days"
        )
        title = f"80 % range of the start holds, {CLUSTER.gpus} GPUs, {name}"
        found.append(Figure(name=title, value=100 * row.held, unit="%", spread=spread, at_least=75.0))
    return found


def table(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table of some traces."""
    heads = "trace | GPUs | names | load | waited | no range | held | before | after | latest ÷ earliest | real ÷ told | in days"
    yield f"| {heads} | in numbers: held | latest ÷ earliest |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for path in arguments.traces:
        whole = read_trace(path)
        cluster = cluster_of(whole)
        if arguments.walltime is not None:
            whole = replace(whole, jobs=[replace(job, time=arguments.walltime) for job in whole.jobs])
        for names in arguments.names:
            for load in arguments.loads:
                told = [
                    one
                    for seed in arguments.seeds
                    for one in replay(loaded(named(whole, names, seed), cluster, load), cluster, every=arguments.every)
                ]
                row = row_of(told)
                start = f"| {path.name} | {cluster.gpus} | {names} | {load:g} | {len(told):,} |"
                if row is None:
                    yield f"{start} {len(told):,} | – | – | – | – | – | – | – | – |"
                else:
                    numbers = row_of([one for one in told if not one.in_days])
                    in_numbers = "– | –" if numbers is None else f"{numbers.held:.1%} | {numbers.width:.1f}"
                    yield (
                        f"{start} {row.silent:,} | {row.held:.1%} | {row.early:.1%} | {row.late:.1%} "
                        f"| {row.width:.1f} | {row.off:.2f} | {row.days:.0%} | {in_numbers} |"
                    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE", help="files to replay instead of generated jobs")
    parser.add_argument("--names", nargs="+", choices=(*NAMES, "own"), default=NAMES)
    parser.add_argument("--loads", nargs="+", type=float, default=LOADS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(1,), help="how users and names are dealt")
    parser.add_argument("--every", type=int, default=1, help="ask for every n-th job only, which takes less time")
    parser.add_argument("--walltime", type=parse_duration, help="of all jobs")
    arguments = parser.parse_args()
    for line in table(arguments) if arguments.traces else (figure.row() for figure in measure(Path())):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
