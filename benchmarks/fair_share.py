"""How much fair share should count: `python benchmarks/fair_share.py`.

Two kinds of work, under the lab's own rules with several values of `share_weight`:

* one user sends 400 jobs at once, and nine send 25 each, spread over five days, on 8 GPUs (run times are exponential with a mean
  of an hour and a half, jobs have 1 GPU, or 2 in one of four): what the nine wait, and what the one pays;
* generated jobs of 40 users on 64 GPUs at a load of 0.8.

The finish-time fairness of a user is the time of their jobs over that on an equal part of the GPUs for them alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median

from carrel.lab.server.rules import read_lab_rules
from carrel.simulate.equal_part import completions_alone
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.measures import Measures, measure
from carrel.simulate.trace import Cluster, Trace, TraceJob
from generator import generate_jobs

HOUR = 3600.0
DAY = 24 * HOUR
WEIGHTS = (0.0, 6 * HOUR, DAY, 3 * DAY, 7 * DAY, 14 * DAY)
SEEDS = (1, 2, 3)
MANY, EACH, OTHERS, DAYS = 400, 25, 9, 5


@dataclass(frozen=True, slots=True)
class Work:
    """A trace and the machines that it runs on."""

    trace: Trace
    cluster: Cluster


def one_and_nine(seed: int) -> Work:
    """The jobs of one user all at once, and nine who come and go."""
    random = Random(seed)
    drafts = [(0.0, "heap")] * MANY
    drafts += [(random.uniform(0, DAYS * DAY), f"user-{number}") for number in range(OTHERS) for _ in range(EACH)]
    jobs = []
    for number, (at, user) in enumerate(sorted(drafts), start=1):
        seconds = min(random.expovariate(1 / (1.5 * HOUR)), DAY)
        gpus = 2 if random.random() < 0.25 else 1
        jobs.append(TraceJob(id=number, submitted=at, duration=seconds, gpus=gpus, time=int(2 * DAY), user=user))
    return Work(Trace(name=f"one and nine, seed {seed}", jobs=jobs), Cluster(nodes=1, gpus_per_node=8))


def generated(seed: int) -> Work:
    """What the generator makes."""
    return Work(generate_jobs(seed, jobs=3000, gpus=64, load=0.8), Cluster(nodes=8, gpus_per_node=8))


def run(work: Work, weight: float) -> Measures:
    """Simulate it with this `share_weight`, in seconds."""
    rules = replace(read_lab_rules(None), share_weight=weight)
    outcome = simulate_lab(rules, work.trace, nodes_of(work.cluster))
    return measure(outcome, work.trace, alone=completions_alone(work.trace, work.cluster.gpus))


def _hours(values: Sequence[float]) -> str:
    return " / ".join(f"{value / HOUR:.1f}" for value in values)


def _fairness(found: Sequence[Measures]) -> str:
    return " / ".join(f"{one.finish_time_fairness or 0:.2f}" for one in found)


def main() -> None:
    """Print two tables; numbers of several seeds are beside each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=float, nargs="*", default=WEIGHTS, help="seconds")
    weights = parser.parse_args().weights
    print("share_weight | the nine wait (h) | the one waits (h) | the one's JCT (h) | fairness, worst user")
    for weight in weights:
        found = [run(one_and_nine(seed), weight) for seed in SEEDS]
        nine = [fmean(user.mean_wait_seconds for user in one.users if user.user != "heap") for one in found]
        heap = [next(user for user in one.users if user.user == "heap") for one in found]
        print(
            f"{weight / HOUR:g} h | {_hours(nine)} | {_hours([user.mean_wait_seconds for user in heap])} | "
            f"{_hours([user.mean_completion_seconds for user in heap])} | {_fairness(found)}",
            flush=True,
        )
    print("share_weight | mean wait (h) | p95 (h) | longest (h) | slowdown | fairness, worst user | median user")
    for weight in weights:
        found = [run(generated(seed), weight) for seed in SEEDS]
        waits = [one.wait_seconds for one in found if one.wait_seconds is not None]
        middle = [median(user.finish_time_fairness or 0.0 for user in one.users) for one in found]
        slowdowns = [one.bounded_slowdown.mean for one in found if one.bounded_slowdown is not None]
        print(
            f"{weight / HOUR:g} h | {_hours([one.mean for one in waits])} | {_hours([one.p95 for one in waits])} | "
            f"{_hours([one.max for one in waits])} | {' / '.join(f'{value:.1f}' for value in slowdowns)} | "
            f"{_fairness(found)} | {' / '.join(f'{value:.2f}' for value in middle)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
