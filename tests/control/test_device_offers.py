"""What placement may give away: no device that others hold, and one with idle GPU state only where that can leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from carrel.core.control.device_offers import DeviceOffers
from carrel.core.control.inbox import News
from carrel.core.control.launching import LaunchSettings
from carrel.core.control.loop_settings import LoopSettings
from carrel.core.control.queue import Queue
from carrel.core.control.rules import RuleBook
from carrel.core.control.scheduler import Scheduler
from carrel.core.domain.job import Job, JobState, Preemption, Reason
from carrel.core.domain.launch import LaunchPaths
from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import GpuState, IdleState, Start, Waiting
from carrel.core.domain.qos import JobKind, PreemptMode, QoS
from carrel.core.domain.resources import Resources
from carrel.core.domain.rules import LabRules
from carrel.core.policy.order import order_of
from carrel.core.policy.placer import Placer
from carrel.simulate.lab.machines import VirtualMachines
from carrel.simulate.lab.memory import MemoryStore

GIB = 1024**3
RULES = RuleBook(LabRules(qos={"all": QoS(name="all")}, default_qos="all", session_qos="all", share_weight=0.0))
SETTINGS = LoopSettings(
    rules=RULES, launch=LaunchSettings(paths=LaunchPaths(environments="", snapshots="", blobs="")), secret=b"",
    drained=lambda nodes: tuple(node for node in nodes if node.name != "drained"),
)  # fmt: skip


def device(name: str, index: int, gpu_type: str) -> Device:
    return Device(uuid=name, index=index, type=gpu_type, name=gpu_type, memory=80 * GIB, simulated=True)


#: Two GPUs of one type, then one of another; and a node that an administrator has drained.
NODES = (
    Node(name="n1", cpus=64, memory=512 * GIB, devices=(device("A0", 0, "a"), device("A1", 1, "a"), device("B0", 2, "b"))),
    Node(name="drained", cpus=64, memory=512 * GIB, devices=(device("X0", 0, "x"),)),
)


class Machines(VirtualMachines):
    """With devices that others hold, and state of idle sessions."""

    def __init__(self, durations: Mapping[int, float]) -> None:
        super().__init__(NODES, durations)
        self.elsewhere: frozenset[str] = frozenset()
        self.state = GpuState()

    def withheld(self) -> frozenset[str]:
        return self.elsewhere

    def gpu_state(self) -> GpuState:
        return self.state


def idle(on: str, gib: int, stays: str = "") -> IdleState:
    return IdleState(tenant=f"session on {on}", devices=(on,), bytes=gib * GIB, stays=stays)


class Lab:
    def __init__(self) -> None:
        self.durations: dict[int, float] = {}
        self.engine = Machines(self.durations)
        self.store = MemoryStore()
        self.scheduler = Scheduler(jobs=self.store, events=self.store, engine=self.engine, settings=SETTINGS)

    def has(self, now: float, **wants: str | None) -> dict[int, tuple[str, ...]]:
        """Submit jobs of one GPU of a type (`j1="a"`), and return which devices each job has."""
        jobs = [
            Job(
                id=int(name[1:]), kind=JobKind.TASK, owner="ada", account="ada", name="", qos="all", state=JobState.PENDING,
                resources=Resources(gpus=1, gpu_type=gpu_type, time=100), reason=Reason(code="", message=""), submitted_at=now,
            )
            for name, gpu_type in wants.items()
        ]  # fmt: skip
        for job in jobs:
            self.store.add(job)
            self.durations[job.id] = 100.0
        self.engine.now = now
        self.scheduler.cycle(News(jobs=jobs, observations=self.engine.ended()), now)
        return {held.id: held.devices for held in self.scheduler.holding()}


def test_what_others_hold_is_given_to_nobody_and_looked_at_again() -> None:
    lab = Lab()
    lab.engine.elsewhere = frozenset({"A0", "B0"})
    assert lab.has(0.0, j1="a", j2="a", j3="b", j4="x") == {1: ("A1",)}
    again = lab.scheduler.next_at()
    assert again is not None
    lab.engine.elsewhere = frozenset()
    assert lab.has(again) == {1: ("A1",), 2: ("A0",), 3: ("B0",)}


def test_a_device_without_state_is_given_first_and_one_whose_state_stays_to_nobody() -> None:
    lab = Lab()
    lab.engine.state = GpuState(states=(idle("A0", 4), idle("B0", 4, stays="it computes")))
    assert lab.has(0.0, j1="a", j2="b") == {1: ("A1",)}
    wait = lab.scheduler.look(0.0).wait_of(2)
    assert wait is not None
    assert "it computes" in wait.reason.message
    assert lab.has(1.0, j3="a") == {1: ("A1",), 3: ("A0",)}
    lab.engine.state = GpuState()
    assert lab.has(2.0) == {1: ("A1",), 2: ("B0",), 3: ("A0",)}


@pytest.mark.parametrize(
    ("wants", "has"),
    [
        # The state on A0 is the smallest, and there is room for it or for that on B0.
        ({"j1": "a"}, {1: ("A0",)}),
        ({"j1": "b"}, {1: ("B0",)}),
        ({"j1": "a", "j2": "b"}, {1: ("A0",)}),
        ({"j1": "b", "j2": "a"}, {2: ("A0",)}),
    ],
)
def test_where_host_memory_takes_one_state_that_one_leaves_which_a_job_needs(
    wants: dict[str, str], has: dict[int, tuple[str, ...]]
) -> None:
    lab = Lab()
    lab.engine.state = GpuState(states=(idle("A0", 4), idle("A1", 5), idle("B0", 6)), host_left=6 * GIB)
    assert lab.has(0.0, **wants) == has


def test_who_has_a_place_keeps_it_while_other_devices_are_offered_for_the_next_one() -> None:
    lab = Lab()
    lab.engine.state = GpuState(states=(idle("A0", 4), idle("B0", 6)), host_left=6 * GIB)
    assert lab.has(0.0, j1="a", j2="b") == {1: ("A1",), 2: ("B0",)}
    assert lab.has(100.0, j3="a") == {3: ("A1",)}, "both have run"


def test_what_jobs_have_counts_as_on_its_way_out() -> None:
    """The state on A0 leaves for job 1, so host memory has no room for that on B0, also in a later cycle."""
    lab = Lab()
    lab.engine.state = GpuState(states=(idle("A0", 4), idle("A1", 5), idle("B0", 6)), host_left=9 * GIB)
    assert lab.has(0.0, j1="a") == {1: ("A0",)}
    assert lab.has(1.0, j2="b") == {1: ("A0",)}
    assert lab.has(2.0, j3="a") == {1: ("A0",), 3: ("A1",)}


# ---- jobs whose GPU state comes back to certain devices only

WAY = Preemption(mode=PreemptMode.SUSPEND, by=9, qos="all", at=90.0, grace=60)


class Offers:
    """What is offered to a placer, with jobs that are stopped and wait for their next turn."""

    def __init__(self) -> None:
        self.engine, self.queue, self.placer = Machines({}), Queue(rotate=lambda _qos: 60), Placer()
        self.offers = DeviceOffers(self.engine, SETTINGS, self.queue, self.placer)

    def stopped(self, number: int, *devices: str) -> Waiting:
        found = self.queue.put(
            Job(
                id=number, kind=JobKind.TASK, owner="ada", account="ada", name="", qos="all", state=JobState.SUSPENDED,
                resources=Resources(gpus=len(devices), time=100), reason=Reason(code="", message=""), submitted_at=0.0,
                attempt=1, node="n1", devices=devices, started_at=1.0, suspended_at=90.0, preemption=WAY,
            ),
            now=100.0,
        )  # fmt: skip
        assert isinstance(found, Waiting)
        return found

    def runs(self, number: int, *devices: str) -> None:
        waiting = self.stopped(number, *devices)
        job = self.queue.job(waiting.id)
        assert job is not None
        self.queue.put(replace(job, state=JobState.RUNNING, preemption=None, suspended_at=None), now=100.0)


def own(*starts: tuple[int, str]) -> Sequence[Start]:
    return [Start(job_id=job_id, node="n1", devices=(uuid,)) for job_id, uuid in starts]


@pytest.fixture
def offers() -> Offers:
    return Offers()


def test_a_job_goes_on_where_its_state_is_and_changes_devices_with_another(offers: Offers) -> None:
    offers.stopped(1, "A0")
    offers.stopped(2, "A1")
    assert offers.offers.to_own_devices(own((1, "A1"), (2, "A0"))) == (own((1, "A0"), (2, "A1")), set())
    assert offers.offers.to_own_devices(own((1, "A0"))) == (own((1, "A0")), set())


@pytest.mark.parametrize("how", ["runs", "withheld", "blocked", "another type"])
def test_a_job_waits_for_its_own_devices_where_others_have_them(offers: Offers, how: str) -> None:
    offers.stopped(1, "A0")
    given = own((1, "A1"))
    if how == "runs":
        offers.runs(7, "A0")
    elif how == "withheld":
        offers.engine.elsewhere = frozenset({"A0"})
    elif how == "blocked":
        offers.engine.state = GpuState(states=(idle("A0", 4, stays="it computes"),))
    else:
        given = own((1, "B0"))
    offers.offers.look()
    offers.offers.make()
    assert offers.offers.to_own_devices(given) == ([], {1})


def test_displaced_jobs_are_in_line_again_when_their_own_devices_are_free(offers: Offers) -> None:
    waiting = {1: offers.stopped(1, "A0"), 2: offers.stopped(2, "A1"), 3: offers.stopped(3, "B0")}
    offers.offers.displaced = dict(waiting)
    offers.runs(7, "A1")
    assert list(offers.offers.free_again({1, 2})) == [1], "job 3 is not paused any more"
    assert offers.offers.displaced == {2: waiting[2]}
    assert list(offers.offers.free_again({1, 2, 3})) == []
    job = offers.queue.job(7)
    assert job is not None
    offers.queue.put(replace(job, state=JobState.COMPLETED), now=200.0)
    assert list(offers.offers.free_again({2})) == [2]
    assert offers.offers.displaced == {}


def test_who_changes_devices_or_waits_holds_nothing_of_what_was_decided(offers: Offers) -> None:
    """Job 1 was to have A1, and waits for A0: then A1 is free."""
    offers.offers.make()
    offers.placer.rules(RULES.current.qos, order_of(RULES.current, {}))
    offers.runs(7, "A0")
    offers.placer.hold(offers.queue.holding[7])
    one = offers.stopped(1, "A0")
    offers.placer.wait(one)
    starts = offers.placer.place(100.0)
    assert [(start.job_id, start.devices) for start in starts] == [(1, ("A1",))]
    assert offers.offers.to_own_devices(starts) == ([], {1})
    offers.placer.wait(replace(one, id=2))
    assert [start.devices for start in offers.placer.place(101.0)] == [("A1",)]
