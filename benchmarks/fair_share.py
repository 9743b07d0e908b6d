"""How much fair share should count, and for how long: `python benchmarks/fair_share.py [FILE or DIRECTORY ...]`.

It prints one table for several values of `share_weight` and `half_life` under the lab's own rules (decision 60):

* how long users with little work wait behind one user's backlog of 125 hours on 64 GPUs, and behind the same of three users;
* by how much the mean wait of each trace differs from that without fair share. Traces are files that `foreign_traces` reads, or
  all in a directory; Muri's third one where none is named. Their jobs are dealt to 20 users, once for each of `DEALS`.

In the last two rows standings do not count. Each job goes later by chance, by up to so many days: what any other order than that
of submission does to a trace. Or by *the queue's own time*: a job stands where its owner's part of the lab (all have the same)
would begin it if it did all that they submitted before within its walltime, up to so many days later (start-time fair queueing:
P. Goyal, H. Vin and H. Cheng, SIGCOMM 1996). That is known when it is submitted. The lab does not do so (decision 60).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import fmean
from unittest.mock import patch

from carrel.core.control import ranking
from carrel.core.domain.placement import Waiting
from carrel.core.domain.rules import LabRules
from carrel.lab.server.rules import read_lab_rules
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, Trace, TraceJob
from foreign_traces import read_trace
from start_ranges import cluster_of, named

HOUR = 3600.0
DAY = 24 * HOUR
#: Seeds by which jobs are dealt, and by which backlogs are made.
DEALS, SEEDS = (1, 2, 3, 4), (1, 2)
#: `share_weight` and `half_life`.
SETTINGS = ((DAY, DAY), (3 * DAY, DAY), (7 * DAY, DAY), (7 * DAY, 7 * DAY))
#: By how much jobs go later by chance, or by the queue's own time, at most.
CHANCE = 7 * DAY
MURI = Path(__file__).parents[1] / "tests" / "data" / "traces" / "muri" / "trace3.csv"


@dataclass(frozen=True, slots=True)
class Work:
    """A trace and the machines that it runs on."""

    trace: Trace
    cluster: Cluster

    def waits(self, rules: LabRules, late: Late | None = None, *, light: bool = False) -> float:
        """Mean wait in hours under these rules, of those without a backlog where `light` is set; jobs go later by `late`."""
        if late is not None:
            later = {name: replace(qos, short_first=1.0) for name, qos in rules.qos.items()}
            with patch.object(ranking, "late_by", late(self)):
                return self.waits(replace(rules, qos=later), light=light)
        runs = simulate_lab(rules, self.trace, nodes_of(self.cluster)).runs
        return fmean(run.wait for run in runs if not (light and run.user.startswith("hog"))) / HOUR


#: Makes of the work what tells by how many seconds a job goes later.
Late = Callable[[Work], Callable[..., float]]


def by_chance(_work: Work) -> Callable[..., float]:
    """Jobs go later by chance."""
    return lambda job, *_: Random(f"{job.id} {job.owner}").uniform(0, CHANCE)


def by_queue_time(work: Work) -> Callable[..., float]:
    """Jobs go later by the queue's own time."""
    part = work.cluster.gpus / len({job.user for job in work.trace.jobs})
    done: dict[str, float] = {}
    found: dict[int, float] = {}

    def late(job: Waiting, *_: object) -> float:
        if job.id not in found:
            begins = max(done.get(job.owner, 0.0), job.submitted_at)
            done[job.owner] = begins + job.resources.total_gpus * job.resources.time / part
            found[job.id] = min(CHANCE, begins - job.submitted_at)
        return found[job.id]

    return late


def backlog(seed: int, hogs: int = 1) -> Work:
    """2,000 jobs all at once of users called hog, and ten users with a dozen shorter jobs each over the next five days."""
    random = Random(seed)
    drafts = [(0.0, f"hog-{random.randrange(hogs)}") for _ in range(2000)]
    drafts += [(random.uniform(0, 5 * DAY), f"user-{number}") for number in range(10) for _ in range(12)]
    jobs = []
    for number, (at, user) in enumerate(sorted(drafts), start=1):
        mean, most, gpus = (4 * HOUR, 2 * DAY, 1) if user.startswith("hog") else (HOUR, DAY / 3, random.choice((1, 1, 1, 2)))
        seconds = min(random.expovariate(1 / mean), most)
        jobs.append(TraceJob(id=number, submitted=at, duration=seconds, gpus=gpus, user=user))
    return Work(Trace(name=f"{hogs} with a backlog, seed {seed}", jobs=jobs), Cluster(nodes=8, gpus_per_node=8))


def rules_with(share_weight: float, half_life: float = DAY) -> LabRules:
    """The lab's own rules, with these two."""
    return replace(read_lab_rules(None), share_weight=share_weight, half_life=half_life)


def change(works: Sequence[Work], rules: LabRules, late: Late | None, without: float) -> str:
    """By how much mean waits differ from `without`, in the mean of all deals and between which two."""
    found = [100 * (work.waits(rules, late) / without - 1) for work in works]
    return f"{fmean(found):+.0f} % ({min(found):+.0f} to {max(found):+.0f})"


def table(paths: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of the table."""
    files = [file for path in paths for file in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    traces = [read_trace(file) for file in files]
    dealt = [[Work(named(trace, "own", deal), cluster_of(trace)) for deal in DEALS] for trace in traces]
    hogs = [[backlog(seed, many) for seed in SEEDS] for many in (1, 3)]
    yield f"| share_weight, half_life | behind one (h) | behind three (h) | {' | '.join(trace.name for trace in traces)} |"
    yield f"|---|---:|---:|{'---:|' * len(traces)}"
    plain = rules_with(0.0)
    without = [works[0].waits(plain) for works in dealt]

    def row(name: str, rules: LabRules, cells: Sequence[str] = (), late: Late | None = None) -> str:
        light = [" / ".join(f"{work.waits(rules, late, light=True):.1f}" for work in works) for works in hogs]
        cells = cells or [change(works, rules, late, mean) for works, mean in zip(dealt, without, strict=True)]
        return f"| {' | '.join([name, *light, *cells])} |"

    yield row("0", plain, [f"{mean:.1f} h" for mean in without])
    for weight, half_life in SETTINGS:
        yield row(f"{weight / DAY:g} d, {half_life / DAY:g} d", rules_with(weight, half_life))
    yield row(f"by chance, {CHANCE / DAY:g} d", plain, late=by_chance)
    yield row(f"the queue's own time, {CHANCE / DAY:g} d", plain, late=by_queue_time)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, metavar="FILE", default=[MURI], help="traces, or directories of them")
    for line in table(parser.parse_args().paths):
        print(line, flush=True)


if __name__ == "__main__":
    main()
