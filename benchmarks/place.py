"""What the lab pays to say who waits, and why: `python benchmarks/place.py`.

Three states of a cluster of nodes with 8 GPUs each: *full* (every GPU is held, nothing can start), *empty* (as many start
as there is room for) and *busy* (one GPU in eight is free, users are near their limits, and every walltime is different).
The placer has started what fits. Measured is that it says what it would decide now, with the reason of each job in line.
"""

from __future__ import annotations

import gc
import random
import statistics
from time import perf_counter
from typing import Any

from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import Holding, Snapshot, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.explain import explain
from carrel.core.policy.placer import Placer

GIB = 1024**3
NOW = 1_000_000.0
#: Waiting jobs, nodes of 8 GPUs, most seconds that it may take (None: no target).
SIZES = [(1_000, 25, None), (10_000, 250, 0.050), (100_000, 1_250, 1.0)]
STATES = ("full", "busy", "empty")
QOS = {
    "batch": QoS(name="batch", max_jobs_per_user=400, max_gpus_per_user=64),
    "short": QoS(name="short", priority=10, max_time=3600),
    "large": QoS(name="large", priority=2),
}


def snapshot(state: str, jobs: int, nodes: int, seed: int = 1) -> Snapshot:
    """Return a cluster in a named state; the same arguments give the same snapshot."""
    rng = random.Random(seed)
    machines = tuple(_node(number) for number in range(nodes))
    holding: list[Holding] = []
    if state != "empty":
        for machine in machines:
            used = machine.devices if state == "full" else rng.sample(machine.devices, 7)
            for device in used:
                holding.append(
                    Holding(
                        id=len(holding) + 1,
                        owner=f"user{rng.randrange(200)}",
                        qos=rng.choice(("batch", "short", "large")),
                        resources=Resources(cpus=8, memory=32 * GIB, gpus=1, gpu_type=device.type),
                        node=machine.name,
                        devices=(device.uuid,),
                        ends_by=NOW + rng.randrange(60, 86400),
                    )
                )
    waiting = [_job(10_000_000 + number, state, rng) for number in range(jobs)]
    rng.shuffle(waiting)
    return Snapshot(nodes=machines, qos=QOS, waiting=waiting, holding=holding)


def _node(number: int) -> Node:
    gpu_type = "h200" if number % 5 else "a100"
    devices = tuple(
        Device(uuid=f"SIM-{number}-{index}", index=index, type=gpu_type, name=gpu_type, memory=80 * GIB, simulated=True)
        for index in range(8)
    )
    return Node(name=f"node{number:05}", cpus=128, memory=1024 * GIB, devices=devices)


def _job(number: int, state: str, rng: random.Random) -> Waiting:
    gpus = rng.choice((1, 1, 1, 1, 2, 2, 4, 8) if state != "full" else (1, 1, 2, 4, 8))
    time = rng.randrange(300, 86400) if state == "busy" else rng.choice((1800, 3600, 14400, 86400))
    memory = rng.choice((8, 32, 64)) * GIB if state != "busy" else rng.randrange(4096, 65536) * 1024**2
    return Waiting(
        id=number,
        owner=f"user{rng.randrange(200)}",
        qos=rng.choice(("batch", "batch", "short", "large")),
        resources=Resources(
            cpus=rng.choice((2, 4, 8)), memory=memory, gpus=gpus, gpu_type=rng.choice((None, "h200", "a100")), time=time
        ),
        submitted_at=NOW - rng.randrange(1, 86400),
        priority=rng.randrange(3),
    )


def measure(repeat: int = 5) -> list[dict[str, Any]]:
    """Return one row per size and state: median seconds, what was decided, the target, and whether it is met.

    `look_s` is the part that the loop pays in each cycle. When somebody asks: `first_100_s` for the words and estimates of
    the first hundred in line, `last_s` until the last in line knows its own (this estimates all), and `explain_s` for wording
    every hold after that.
    """
    rows: list[dict[str, Any]] = []
    for jobs, nodes, target in SIZES:
        for state in STATES:
            placer = Placer.of(snapshot(state, jobs, nodes))
            started = len(placer.place(NOW))
            placement, times, looks = explain(placer.look(NOW)), [], []
            for _ in range(repeat):
                gc.collect()
                begin = perf_counter()
                outcome = placer.look(NOW)
                looks.append(perf_counter() - begin)
                placement = explain(outcome)
                times.append(perf_counter() - begin)
            begin = perf_counter()
            _ = placement.pending[:100]
            told = perf_counter() - begin
            begin = perf_counter()
            _ = placement.pending[-1:]
            asked = perf_counter() - begin
            begin = perf_counter()
            pending = sum(1 for _ in placement.pending)
            explained = perf_counter() - begin
            median = statistics.median(times)
            rows.append(
                {
                    "name": f"place, {state}, {jobs:,} waiting x {nodes * 8:,} GPUs",
                    "state": state,
                    "waiting": jobs,
                    "gpus": nodes * 8,
                    "starts": started,
                    "holds": pending,
                    "median_s": median,
                    "look_s": statistics.median(looks),
                    "first_100_s": told,
                    "last_s": asked,
                    "explain_s": explained,
                    "target_s": target,
                    "met": target is None or median <= target,
                }
            )
    return rows


def figures() -> list[Any]:
    """The rows that have a target, for the table of all figures."""
    from figure import Figure  # beside this file when it is a script; tests load this file alone

    return [
        Figure(
            name=row["name"],
            value=1000 * row["median_s"],
            unit="ms",
            spread=f"{row['starts']:,} start; estimates of all that wait: {1000 * row['last_s']:.0f} ms more, when somebody asks",
            at_most=1000 * row["target_s"],
        )
        for row in measure()
        if row["target_s"] is not None
    ]


def main() -> None:
    titles = ("ms", "target", "look ms", "first 100 ms", "last ms", "all holds ms")
    print(f"{'state':6} {'waiting':>8} {'GPUs':>7} {'starts':>7} " + "".join(f"{title:>13}" for title in titles))
    for row in measure():
        figures = [
            f"{row[name] * 1000:.1f}" if row[name] else "-"
            for name in ("median_s", "target_s", "look_s", "first_100_s", "last_s", "explain_s")
        ]
        head = f"{row['state']:6} {row['waiting']:>8,} {row['gpus']:>7,} {row['starts']:>7,} "
        print(head + "".join(f"{figure:>13}" for figure in figures))


if __name__ == "__main__":
    main()
