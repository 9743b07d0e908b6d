"""Limits through the whole loop, minute by minute: a job that cannot run now is in no other job's way, and promises are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from scheduled import Scheduled, job, rules, settings

from carrel.core.domain.job import Job
from carrel.core.domain.node import Node
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from carrel.simulate.lab.machines import VirtualMachines, nodes_of
from carrel.simulate.trace import Cluster

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


def node(name: str, gpu_type: str, drained: str | None = None) -> Node:
    (one,) = nodes_of(Cluster(nodes=1, gpus_per_node=8), gpu_type)
    devices = tuple(replace(device, uuid=f"{name}-{device.index}") for device in one.devices)
    return replace(one, name=name, devices=devices, drained=drained)


class Played:
    """A lab to which jobs come at their time, and in which each runs for its walltime."""

    def __init__(
        self,
        nodes: Iterable[Node],
        qos: Mapping[str, QoS],
        jobs: Iterable[Job],
        *,
        promises: int = 1,
        kept: Reservation | None = None,
    ) -> None:
        self.jobs = sorted(jobs, key=lambda one: (one.submitted_at, one.id))
        machines = VirtualMachines(tuple(nodes), {one.id: float(one.resources.time) for one in self.jobs})
        reserved = () if kept is None else (kept,)
        book = rules(qos=qos, promises=promises, share_weight=0.0)
        self.lab = Scheduled(machines, settings(book, reserved=lambda: reserved))
        self.now = 0.0

    def minute(self) -> set[int]:
        """Let a minute go by; return who runs then."""
        due = [one for one in self.jobs if one.submitted_at <= self.now]
        self.jobs = self.jobs[len(due) :]
        running = self.lab.runs(self.now, *due)
        self.now += MINUTE
        return running

    def start_of(self, number: int, until: float) -> float | None:
        """When the job starts, or None where it has not by then."""
        while self.now <= until:
            if number in self.minute():
                return self.now - MINUTE
        return None


def stream(
    first: int, owner: str, qos: str, *, gpus: int, time: float, every: float = MINUTE, until: float = 6 * HOUR
) -> list[Job]:
    """Jobs that come one after the other."""
    moments = range(int(until // every))
    return [job(first + n, owner, qos=qos, gpus=gpus, time=int(time), submitted_at=n * every) for n in moments]


def busy(gpus: int = 8) -> list[Job]:
    """One job on each GPU, which are over one after the other: the last four in half an hour to an hour."""
    return [job(50 + n, "bob", qos="free", gpu_type="h100", time=450 * (n + 1), submitted_at=-1) for n in range(gpus)]


LIMITS = [
    QoS(name="all", max_gpus=4),
    QoS(name="all", max_gpus_per_account=4),
    QoS(name="all", max_gpus_per_user=4),
]


@pytest.mark.gate
@pytest.mark.parametrize("limit", LIMITS, ids=["everybody's", "the account's", "her own"])
@pytest.mark.parametrize("why", ["drained", "kept for a course"])
def test_a_job_that_cannot_run_now_leaves_its_limit_to_others(limit: QoS, why: str) -> None:
    course = Reservation(name="course", begin=-10, end=14 * DAY, nodes=("n2",), users=frozenset({"zed"}), accounts=frozenset())
    nodes = [node("n1", "h100"), node("n2", "a100", "for repair" if why == "drained" else None)]
    large = job(1, "ada", gpus=4, gpu_type="a100", time=int(HOUR), submitted_at=-10)
    small = [job(2 + n, "ada", time=int(HOUR)) for n in range(6)]
    lab = Played(nodes, {"all": limit}, [large, *small], kept=None if why == "drained" else course)
    assert len(lab.minute()) == 4
    lab.now = 2 * HOUR
    assert lab.minute() == {6, 7}


@pytest.mark.parametrize("promises", [1, 3])
@pytest.mark.parametrize("gpus", [0, 6, 7])
def test_a_promise_is_kept_behind_a_job_for_a_drained_node(gpus: int, promises: int) -> None:
    qos = {"all": QoS(name="all", max_gpus=8), "free": QoS(name="free")}
    nodes = [node("n1", "h100"), node("n2", "a100", "for repair")]
    ahead = [job(1, "ada", gpus=gpus, gpu_type="a100", time=int(HOUR), submitted_at=-0.5)] if gpus else []
    hers = job(2, "eve", gpus=4, gpu_type="h100", time=int(HOUR), submitted_at=0)
    others = [
        *stream(1000, "bob", "free", gpus=1, time=HOUR),
        *stream(2000, "cyd", "all", gpus=1, time=300),
        *stream(3000, "dan", "all", gpus=1, time=300),
    ]
    lab = Played(nodes, qos, [*busy(), *ahead, hers, *others], promises=promises)
    assert lab.start_of(2, until=6 * HOUR) == HOUR / 2


@pytest.mark.parametrize("promises", [1, 3])
def test_a_promise_is_kept_beside_a_stream_of_jobs_without_gpus(promises: int) -> None:
    qos = {"all": QoS(name="all", max_jobs_per_user=1, max_gpus=4), "free": QoS(name="free")}
    line = [job(1, "ada", gpus=4, time=int(HOUR), submitted_at=-0.5), job(2, "eve", gpus=3, time=int(HOUR), submitted_at=-0.4)]
    others = [*stream(1000, "ada", "all", gpus=0, time=300), *stream(5000, "bob", "free", gpus=1, time=HOUR)]
    lab = Played([node("n1", "h100")], qos, [*busy(), *line, *others], promises=promises)
    assert lab.start_of(1, until=6 * HOUR) == HOUR / 2
    assert lab.start_of(2, until=6 * HOUR) == 1.5 * HOUR
