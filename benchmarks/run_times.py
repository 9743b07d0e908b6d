"""How well run times are foretold: `python benchmarks/run_times.py`.

Traces are replayed, first fit, on 64 GPUs; each job is asked about when it is submitted, from what had ended by then, and again
one hour after it started. Of ranges that should hold 80 % of all jobs, this says how many they held, how wide they are, and
how far off the median is, next to the walltime that was asked for.

What is known of a job is its owner, its name and its walltime. Traces that do not tell users apart, or whose names say nothing
about run times, are in the table to show what is left then; one without walltimes is replayed with 14 days for everybody.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from math import exp, log
from pathlib import Path
from time import perf_counter

from baselines import simulate_baseline
from carrel.core.policy.runtime import Expected, RunTimes
from carrel.simulate.trace import Cluster, Trace, TraceJob
from foreign_traces import read_trace
from generator import FITTED, generate_jobs

TRACES = Path(__file__).parents[1] / "tests" / "data" / "traces"
CLUSTER = Cluster(nodes=8, gpus_per_node=8)
SEEDS = (1, 2, 3, 4, 5)
JOBS = 5_000
LOAD = 0.8
#: Walltime of jobs that do not say.
LIMIT = 14 * 86400.0
#: When jobs that still run are asked about again: seconds after their start.
LATER = 3600.0


class _Event(IntEnum):
    """In the order in which those of one moment happen."""

    END = 0
    SUBMIT = 1
    LATER = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said about one job."""

    #: Seconds that it ran, or ran on.
    ran: float
    #: Walltime, or what was left of it.
    limit: float
    #: How many jobs of its owner and name had ended.
    known: int
    expected: Expected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What many answers come to."""

    trace: str
    asked: str
    jobs: int
    #: Share of jobs about which nothing was said.
    silent: float
    #: Shares of the others that ran as long as the range says, shorter, and longer.
    held: float
    shorter: float
    longer: float
    #: Median of high / low.
    width: float
    #: By which factor the median is off, and the walltime: medians.
    off: float
    walltime_off: float


def replay(trace: Trace, cluster: Cluster) -> tuple[Sequence[Answer], Sequence[Answer], float]:
    """Return what is said at submission, what an hour after the start, and the microseconds of one question or observation."""
    jobs = {job.id: job for job in trace.jobs}
    events: list[tuple[float, _Event, int]] = []
    for run in simulate_baseline("first-fit", trace, cluster).runs:
        events += [(run.submitted, _Event.SUBMIT, run.id), (run.end, _Event.END, run.id)]
        if run.ran > LATER:
            events.append((run.start + LATER, _Event.LATER, run.id))
    learned, known = RunTimes(), Counter[tuple[str, str]]()
    first: list[Answer] = []
    later: list[Answer] = []
    events.sort()
    begin = perf_counter()
    for _, event, number in events:
        job = jobs[number]
        who, limit = (job.user, job.name), _limit(job)
        if event is _Event.END:
            learned.observe(*who, job.duration, limit)
            known[who] += 1
        elif event is _Event.SUBMIT:
            first.append(Answer(job.duration, limit, known[who], learned.expect(*who, limit)))
        else:
            answer = learned.remaining(*who, limit, LATER)
            later.append(Answer(job.duration - LATER, limit - LATER, known[who], answer))
    return first, later, 1e6 * (perf_counter() - begin) / len(events)


def _limit(job: TraceJob) -> float:
    return LIMIT if job.time is None else float(job.time)


def rows(name: str, first: Iterable[Answer], later: Iterable[Answer]) -> Iterator[Row]:
    """Yield what the answers come to, all and by how many jobs of the name were known."""
    first = list(first)
    for asked, chosen in (
        ("at submission", first),
        ("… fewer than 3 known", [one for one in first if one.known < 3]),
        ("… 3 to 8 known", [one for one in first if 3 <= one.known < 9]),
        ("… 9 or more known", [one for one in first if one.known >= 9]),
        ("after an hour", list(later)),
    ):
        if any(one.expected for one in chosen):
            yield _row(name, asked, chosen)


def _row(name: str, asked: str, answers: Sequence[Answer]) -> Row:
    told = [(max(one.ran, 1.0), one.limit, one.expected) for one in answers if one.expected is not None]
    shorter = statistics.fmean(ran < expected.low for ran, _, expected in told)
    longer = statistics.fmean(ran > expected.high for ran, _, expected in told)
    return Row(
        trace=name,
        asked=asked,
        jobs=len(answers),
        silent=1 - len(told) / len(answers),
        held=1 - shorter - longer,
        shorter=shorter,
        longer=longer,
        width=statistics.median(expected.high / max(expected.low, 1.0) for _, _, expected in told),
        off=statistics.median(exp(abs(log(max(expected.median, 1.0) / ran))) for ran, _, expected in told),
        walltime_off=statistics.median(limit / ran for ran, limit, _ in told),
    )


def measure() -> tuple[Sequence[Row], float]:
    """Return the rows of all traces, and the largest of the mean times of a question or observation in microseconds."""
    found: list[Row] = []
    slowest = 0.0
    erratic = replace(FITTED, spread=1.0)
    flat = replace(FITTED, people=replace(FITTED.people, novelty=1.0))
    for name, like in (
        ("generated", FITTED),
        ("generated, names vary 3 times as much", erratic),
        ("generated, no name ever comes again", flat),
    ):
        first: list[Answer] = []
        later: list[Answer] = []
        for seed in SEEDS:
            trace = generate_jobs(seed, jobs=JOBS, like=like, gpus=CLUSTER.gpus, load=LOAD)
            at_first, an_hour_later, microseconds = replay(trace, CLUSTER)
            first += at_first
            later += an_hour_later
            slowest = max(slowest, microseconds)
        found += rows(name, first, later)
    for path in ("muri/trace3.csv", "tiresias/60_job.csv"):
        at_first, an_hour_later, _ = replay(read_trace(TRACES / path), CLUSTER)
        found += rows(path, at_first, an_hour_later)
    return found, slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    chosen = parser.parse_args()
    found, slowest = measure()
    if chosen.json:
        print(json.dumps({"rows": [asdict(row) for row in found], "us": slowest}, indent=2))
        return 0
    print("| trace | asked | jobs | no answer | held | shorter | longer | high ÷ low | median off by | walltime off by |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for row in found:
        print(
            f"| {row.trace} | {row.asked} | {row.jobs:,} | {row.silent:.1%} | {row.held:.1%} | {row.shorter:.1%} "
            f"| {row.longer:.1%} | {row.width:,.1f} | {row.off:.2f} × | {row.walltime_off:,.2f} × |"
        )
    print(f"\nA question or an observation takes {slowest:.1f} µs on average. Ranges should hold 80 % (75 to 85 %).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
