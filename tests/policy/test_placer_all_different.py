"""A `Placer` that is told of each change decides what a new one decides, for long queues in which hardly two jobs are alike."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_labs import ACCOUNTS, GIB, MEMORY, NOW, TYPES, Lab, lab, node

from carrel.core.domain.node import Node
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import ArrayLimit, Snapshot, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.core.domain.resources import Resources
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition
from support.examples import examples

MIB = 1024**2
QOS = ("batch", "short", "free")


class RandomLab:
    """A lab, and what may happen in it, from one number."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self._number = 0
        #: How much is asked for: much of it waits for a long time, or little of it does.
        self._large = rng.choice((1, 1, 2, 3))
        self.partitions = self._partitions()
        first = lab(
            self._nodes(),
            [self.job() for _ in range(rng.randrange(20, 90))],
            qos=self._services(),
            promises=rng.choice((1, 1, 3)),
        )
        weights = {"share_weight": rng.choice((0.0, 800.0)), "size_weight": rng.choice((0.0, 100.0))}
        self.lab = Lab(replace(first, partitions=self.partitions, reservations=self._windows(), **weights))

    def job(self) -> Waiting:
        """Somebody's, unlike all others."""
        rng = self.rng
        self._number += 1
        gpus, owner, qos = rng.choice((0, 1, 1, 2, 3, 4)), rng.choice(sorted(ACCOUNTS)), rng.choice(QOS)
        more: dict[str, Any] = {}
        if gpus and rng.random() < 0.4:
            more["gpu_type"] = rng.choice(TYPES)
        if gpus and rng.random() < 0.3:
            more["gpu_memory"] = rng.randrange(8_000, 90_000) * MIB
        wanted = Resources(
            nodes=rng.choice((1,) * 6 + (2, 3)),
            gpus=gpus,
            cpus=rng.randrange(1, 5 * self._large),
            memory=rng.randrange(100, 7_000 * self._large) * MIB,
            time=rng.randrange(30, 4_000),
            **more,
        )
        array = ArrayLimit(9000 + sorted(ACCOUNTS).index(owner) * 10 + QOS.index(qos), 2) if rng.random() < 0.1 else None
        return Waiting(
            id=self._number,
            owner=owner,
            account=ACCOUNTS[owner],
            qos=qos,
            resources=wanted,
            submitted_at=NOW - rng.randrange(4_000),
            priority=rng.randrange(3),
            partition=rng.choice(["", *self.partitions]),
            expected=rng.choice((None, None, rng.randrange(20, 4_000))),
            array=array,
        )

    def happen(self) -> None:
        """Something changes; then both decide."""
        rng, there = self.rng, self.lab
        match rng.choice(
            ("end",) * 8 + ("submit",) * 4 + ("cancel", "later", "later", "rank", "nodes", "states", "start", "windows")
        ):
            case "end" if there.holding:
                there.forget(rng.choice(sorted(there.holding)))
            case "submit":
                there.wait(replace(self.job(), submitted_at=there.now - rng.randrange(3)))
            case "cancel" if there.waiting:
                for job_id in rng.sample(sorted(there.waiting), k=min(len(there.waiting), rng.randrange(1, 12))):
                    there.forget(job_id)
            case "later":
                there.now += rng.choice((1.0, 60.5, 700.25))
            case "rank":
                there.change(standing={(ACCOUNTS[owner], owner): rng.random() for owner in ACCOUNTS})
            case "nodes":
                drained = rng.choice([*(machine.name for machine in there.snapshot.nodes), ""])
                there.change(
                    nodes=tuple(
                        replace(machine, drained="for repair" if machine.name == drained else None)
                        for machine in there.snapshot.nodes
                    )
                )
            case "states":
                uuids = [device.uuid for machine in there.snapshot.nodes for device in machine.devices]
                there.change(withheld=frozenset(rng.sample(uuids, k=min(len(uuids), rng.randrange(3)))))
            case "start" if there.holding:
                held = there.holding[rng.choice(sorted(there.holding))]
                there.hold(replace(held, ends_by=held.ends_by + rng.randrange(300)))
            case "windows":
                there.change(reservations=self._windows())
        there.place()

    def _nodes(self) -> list[Node]:
        rng = self.rng
        return [
            node(f"n{number}", *rng.choices(TYPES[: rng.choice((1, 3))], k=rng.randrange(5)), cpus=rng.randrange(4, 16))
            for number in range(rng.randrange(2, 7))
        ]

    def _services(self) -> dict[str, QoS]:
        rng = self.rng
        limits = {
            name: QoS(
                name=name,
                priority=rng.randrange(3),
                max_jobs_per_user=rng.choice((None, 2, 5)),
                max_gpus_per_user=rng.choice((None, 2, 4, 6)),
                max_jobs_per_account=rng.choice((None, None, 4)),
                max_gpus_per_account=rng.choice((None, 3, 8)),
                max_gpus=rng.choice((None, 4, 10)),
            )
            for name in QOS[:2]
        }
        return {**limits, "free": QoS(name="free")}

    def _partitions(self) -> dict[str, Partition]:
        found = {"left": Partition(name="left", nodes=("n[0-2]",)), "right": Partition(name="right", nodes=("n[2-9]",))}
        if self.rng.random() < 0.3:
            found["site"] = slurm_partition("site", SlurmPartition(partition="main"))
        return found if self.rng.random() < 0.4 else {}

    def _windows(self) -> tuple[Reservation, ...]:
        rng = self.rng
        begins = [NOW + rng.choice((-500, 300, 2_500)) for _ in range(rng.choice((0, 0, 1, 2)))]
        return tuple(
            Reservation(
                name=f"r{number}",
                begin=begin,
                end=begin + rng.choice((200, 3_000)),
                nodes=(rng.choice(("n0", "n[1-2]")),),
                users=frozenset({rng.choice(sorted(ACCOUNTS))}),
                accounts=frozenset(),
                reason="a course",
            )
            for number, begin in enumerate(begins)
        )


@settings(max_examples=examples(40))
@given(st.integers(0, 2**40))
def test_it_decides_what_place_decides_where_no_two_jobs_are_alike(seed: int) -> None:
    random_lab = RandomLab(seed)
    random_lab.lab.place()
    for _ in range(30):
        random_lab.happen()


def _first_of_all(count: int, **more: Any) -> Snapshot:
    """One GPU, and so many who want it, each with a little more memory than the one before."""
    machine = node("n1", "h200", cpus=8, memory=64 * GIB)
    jobs = [
        Waiting(
            id=number, owner="ada", qos="batch", submitted_at=NOW - 1000 + number,
            resources=Resources(gpus=1, cpus=1, memory=GIB + number * MIB, time=60 + number),
        )
        for number in range(1, count + 1)
    ]  # fmt: skip
    return lab([machine], jobs, **more)


@pytest.mark.parametrize("count", [1, 2, 17, 200])
def test_they_start_one_after_the_other_in_the_order_of_the_queue(count: int) -> None:
    there = Lab(_first_of_all(count))
    started: list[int] = []
    while there.waiting:
        started += [start.job_id for start in there.place()]
        there.forget(started[-1])
    assert started + [start.job_id for start in there.place()] == list(range(1, count + 1))


def test_whom_no_node_can_hold_is_looked_at_again_when_there_are_others() -> None:
    there = Lab(_first_of_all(40))
    there.change(nodes=(node("n2", cpus=8, memory=64 * GIB),))
    assert there.place() == ()
    there.change(nodes=(node("n2", cpus=8, memory=64 * GIB), node("n3", "h200", "h200")))
    assert [start.job_id for start in there.place()] == [1, 2]


def test_a_gpu_with_more_memory_than_all_before_is_found_by_those_who_need_it() -> None:
    wanted = Resources(gpus=1, cpus=1, memory=GIB, gpu_memory=(MEMORY["a100"] + 1) * GIB)
    job = Waiting(id=1, owner="ada", qos="batch", submitted_at=NOW, resources=wanted)
    other = Waiting(id=2, owner="ada", qos="batch", submitted_at=NOW, resources=replace(wanted, gpu_memory=1))
    there = Lab(lab([node("n1", "a100")], [job, other]))
    assert [start.job_id for start in there.place()] == [2]
    there.change(nodes=(node("n1", "a100"), node("n2", "h200")))
    assert [start.node for start in there.place()] == ["n2"]
