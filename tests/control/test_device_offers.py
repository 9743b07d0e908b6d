"""What placement may give away: no device that others hold, and one with idle GPU state only where that can leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest
from scheduled import Scheduled, job, rules, settings

from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import GpuState, IdleState
from carrel.simulate.lab.machines import VirtualMachines

GIB = 1024**3
SETTINGS = settings(rules(share_weight=0.0), drained=lambda nodes: tuple(node for node in nodes if node.name != "drained"))


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


class Lab(Scheduled):
    engine: Machines

    def __init__(self) -> None:
        super().__init__(Machines(defaultdict(lambda: 100.0)), SETTINGS)

    def has(self, now: float, **wants: str | None) -> dict[int, tuple[str, ...]]:
        """Submit jobs of one GPU of a type (`j1="a"`), and return which devices each job has."""
        self.cycle(now, *(job(int(name[1:]), gpu_type=kind, submitted_at=now) for name, kind in wants.items()))
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
