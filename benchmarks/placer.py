"""What one end of a job costs the placer while 10,000 others wait: `python benchmarks/placer.py`.

50 nodes of 8 GPUs, all of them busy. A job ends, the placer says what starts in its place, and for each that starts another one
comes into line. Measured is processor time, so that a busy machine does not count: of the end with its placement, and of a
submission with its own. *Alike* are jobs of few kinds, as in most labs; in the other mixes no two jobs are alike.
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from time import process_time
from typing import Any

from carrel.core.domain.node import Device, Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import ArrayLimit, Holding, Start, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.resources import Resources
from carrel.core.policy.order import Order
from carrel.core.policy.placer import Placer

GIB = 1024**3
MIB = 1024**2
NOW = 1_000_000.0
NODES = 50
WAITING = 10_000
ENDS = 300
USERS = 200
ACCOUNTS = 20

FREE = {name: QoS(name=name, priority=points) for name, points in (("normal", 0), ("short", 10), ("batch", 2))}
LIMITED = {
    "normal": QoS(name="normal", max_jobs_per_user=40, max_gpus_per_user=8, max_gpus_per_account=64),
    "short": QoS(name="short", priority=10, max_gpus_per_user=4),
    "batch": QoS(name="batch", priority=2, max_jobs_per_user=20, max_gpus_per_account=32, max_gpus=160),
    "open": QoS(name="open"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What kinds of jobs wait, under which rules."""

    name: str
    qos: Mapping[str, QoS] = field(default_factory=lambda: FREE)
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    reservations: Sequence[Reservation] = ()
    promises: int = 1
    #: Few kinds of jobs, of few owners.
    alike: bool = False
    #: So many GPUs, all of them.
    gpus: int | None = None
    #: GPU types, memory of GPUs, several nodes, expected times and arrays are asked for, too.
    rich: bool = False


PARTITIONS = {
    "left": Partition(name="left", nodes=("node000[00-29]",)),
    "right": Partition(name="right", nodes=("node000[25-49]",)),
}
COURSE = Reservation(
    name="course",
    begin=NOW + 40_000,
    end=NOW + 60_000,
    nodes=("node000[00-04]",),
    users=frozenset({"user1"}),
    accounts=frozenset(),
    reason="a course",
)
MIXES = (
    Mix(name="alike", alike=True),
    Mix(name="all different"),
    Mix(name="all different, limits", qos=LIMITED),
    Mix(name="all different, 1 GPU each, one limit of all", qos={"normal": QoS(name="normal", max_gpus=100)}, gpus=1),
    Mix(name="all different, limits, three promises", qos=LIMITED, promises=3),
    Mix(
        name="all different, limits, types, partitions, a reservation",
        qos=LIMITED,
        partitions=PARTITIONS,
        reservations=(COURSE,),
        rich=True,
    ),
)


class Lab:
    """A lab whose queue is as long after each end as before it."""

    def __init__(self, mix: Mix, waiting: int, seed: int = 1) -> None:
        self.now = NOW
        self._mix = mix
        self._rng = random.Random(seed)
        self._jobs: dict[int, Waiting] = {}
        self._ends: list[tuple[float, int]] = []
        self._number = 0
        self.placer = Placer()
        self.placer.nodes(tuple(_node(number) for number in range(NODES)))
        standing = {(_account(user), f"user{user}"): self._rng.random() for user in range(USERS)}
        order = Order(mix.qos, standing, age_weight=600.0, share_weight=21_600.0, size_weight=0.0)
        self.placer.rules(mix.qos, order, mix.partitions, promises=mix.promises)
        self.placer.reservations(mix.reservations)
        for _ in range(waiting):
            self.placer.wait(self._submit(self.now - self._rng.randrange(1, 86_400)))
        self.carry_out(self.placer.place(self.now))
        while len(self._jobs) < waiting:
            self.placer.wait(self._submit(self.now))

    def end(self) -> float:
        """The next job ends, and others start; return the processor time of both, seconds."""
        self.now, job_id = heappop(self._ends)
        begin = process_time()
        self.placer.forget(job_id)
        starts = self.placer.place(self.now)
        held = [self._hold(start) for start in starts]
        seconds = process_time() - begin
        self._started(held)
        return seconds

    def submit(self) -> float:
        """Somebody comes into line; return the processor time of that, seconds."""
        job = self._submit(self.now)
        begin = process_time()
        self.placer.wait(job)
        starts = self.placer.place(self.now)
        seconds = process_time() - begin
        self.carry_out(starts)
        return seconds

    def carry_out(self, starts: Sequence[Start]) -> None:
        """What starts runs."""
        self._started([self._hold(start) for start in starts])

    @property
    def waiting(self) -> int:
        """Jobs in line."""
        return len(self._jobs)

    def _hold(self, start: Start) -> Holding:
        job = self._jobs.pop(start.job_id)
        held = Holding(
            id=job.id, owner=job.owner, account=job.account, qos=job.qos, resources=job.resources, node=start.node,
            devices=start.devices, others=start.others, ends_by=self.now + job.longest, due=self.now + job.seconds,
            array=job.array, partition=job.partition,
        )  # fmt: skip
        self.placer.hold(held)
        return held

    def _started(self, holding: Sequence[Holding]) -> None:
        for held in holding:
            heappush(self._ends, (self.now + self._rng.uniform(0.1, 1.0) * (held.over_by - self.now), held.id))

    def _submit(self, at: float) -> Waiting:
        self._number += 1
        job = (_alike if self._mix.alike else _different)(self._number, at, self._mix, self._rng)
        self._jobs[job.id] = job
        return job


def _node(number: int) -> Node:
    gpu_type, memory = ("h200", 141) if number % 5 else ("a100", 80)
    devices = tuple(
        Device(uuid=f"SIM-{number}-{index}", index=index, type=gpu_type, name=gpu_type, memory=memory * GIB, simulated=True)
        for index in range(8)
    )
    return Node(name=f"node{number:05}", cpus=128, memory=1024 * GIB, devices=devices)


def _account(user: int) -> str:
    return f"account{user % ACCOUNTS}"


def _alike(number: int, at: float, mix: Mix, rng: random.Random) -> Waiting:
    user, gpus = rng.randrange(10), rng.choice((1, 1, 2, 4, 8))
    wanted = Resources(cpus=8 * gpus, memory=64 * gpus * GIB, gpus=gpus, time=rng.choice((3600, 14_400, 86_400)))
    return Waiting(
        id=number, owner=f"user{user}", account=_account(user), qos=rng.choice(sorted(mix.qos)), resources=wanted, submitted_at=at
    )


def _different(number: int, at: float, mix: Mix, rng: random.Random) -> Waiting:
    user, qos = rng.randrange(USERS), rng.choice(sorted(mix.qos))
    gpus = rng.choice((0, 1, 1, 1, 1, 2, 2, 4, 8)) if mix.gpus is None else mix.gpus
    more: dict[str, Any] = {}
    job: dict[str, Any] = {}
    if mix.rich:
        more["nodes"] = rng.choice((1,) * 9 + (2,))
        if gpus:
            more["gpu_type"] = rng.choice((None, "h200", "a100"))
            more["gpu_memory"] = rng.choice((0, 0, 0, rng.randrange(20_000, 140_000) * MIB))
        if rng.random() < 0.3:
            job["expected"] = rng.randrange(60, 86_400)
        if rng.random() < 0.1:
            job["array"] = ArrayLimit(number % 100 * 10_000 + USERS * sorted(mix.qos).index(qos) + user, 2)
    wanted = Resources(
        cpus=rng.randrange(1, 9 if gpus else 33) * max(gpus, 1),
        memory=rng.randrange(2_000, 100_000) * max(gpus, 1) * MIB,
        gpus=gpus,
        time=rng.randrange(300, 86_400),
        **more,
    )
    return Waiting(
        id=number,
        owner=f"user{user}",
        account=_account(user),
        qos=qos,
        resources=wanted,
        submitted_at=at,
        priority=rng.randrange(3),
        partition=rng.choice(sorted(mix.partitions)) if mix.partitions else "",
        **job,
    )


def measure(mix: Mix, ends: int = ENDS, waiting: int = WAITING) -> tuple[list[float], list[float]]:
    """Return the seconds of each end, and of each submission that follows them."""
    lab = Lab(mix, waiting)
    gc.collect()
    gc.disable()
    of_ends, of_submissions = [], []
    try:
        for _ in range(ends):
            of_ends.append(lab.end())
            while lab.waiting < waiting:
                of_submissions.append(lab.submit())
    finally:
        gc.enable()
    return of_ends, of_submissions


def memory(mix: Mix, waiting: int = WAITING) -> float:
    """Return the bytes for each job that waits, the job itself not counted."""
    tracemalloc.start()
    try:
        lab = Lab(mix, waiting)
        gc.collect()
        whole = tracemalloc.get_traced_memory()[0]
        lab.placer = Placer()
        gc.collect()
        return (whole - tracemalloc.get_traced_memory()[0]) / waiting
    finally:
        tracemalloc.stop()


def figures() -> Iterator[Any]:
    """The rows for the table of all figures."""
    from figure import Figure, median, percentile  # beside this file when it is a script; tests load this file alone

    for mix in MIXES:
        ends, submissions = ([1000 * one for one in times] for times in measure(mix))
        what = f"{WAITING:,} waiting, {mix.name}"
        yield median(f"an end, {what}", ends, "ms", at_most=5.0)
        yield percentile(f"an end, p99, {what}", ends, "ms", 99, at_most=50.0)
        if submissions:
            yield median(f"a submission, {what}", submissions, "ms")
        yield Figure(name=f"memory of one that waits, {what}", value=memory(mix) / 1024, unit="KiB")


def main() -> None:
    chosen = [mix for mix in MIXES if not sys.argv[1:] or mix.name in sys.argv[1:]]
    print(f"{'median':>8} {'mean':>8} {'p99':>8} {'worst':>8}  submission: {'median':>8} {'p99':>8} ms")
    for mix in chosen:
        ends, submissions = ([1000 * one for one in sorted(times)] for times in measure(mix))
        p99 = [times[-(-len(times) * 99 // 100) - 1] for times in (ends, submissions)]
        mean, middle = statistics.fmean(ends), statistics.median(submissions)
        row = f"{statistics.median(ends):8.3f} {mean:8.3f} {p99[0]:8.3f} {ends[-1]:8.3f}              {middle:8.3f} {p99[1]:8.3f}"
        print(f"{row}  {mix.name}", flush=True)


if __name__ == "__main__":
    main()
