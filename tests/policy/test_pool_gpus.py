"""Where workers of pools borrow their GPUs, and how many of them can compute at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carrel.core.domain.node import Device, Node
from carrel.core.domain.resources import Resources
from carrel.core.domain.task import TaskSpec
from carrel.core.policy.pool_gpus import most_that_compute, shared_nodes, without_gpus

pytestmark = pytest.mark.quick
TASK = TaskSpec(entry_point="main", command="true", snapshot="")
ONE = Resources(gpus=1)


def node(gpus: int, *, name: str = "n", kind: str = "a100", shards: int = 0) -> Node:
    devices = tuple(Device(uuid=f"{name}-{n}", index=n, type=kind, name=kind, memory=16 * 2**30) for n in range(gpus))
    return Node(name=name, cpus=4, memory=2**30, devices=devices, shards=shards)


def test_no_more_workers_than_gpus_compute_at_once() -> None:
    assert most_that_compute(TASK, ONE, [node(4), node(1)]) == 5
    assert most_that_compute(TASK, replace(ONE, gpus=2), [node(5), node(1)]) == 2
    assert most_that_compute(TASK, replace(ONE, gpu_type="a100", gpu_memory=2**30), [node(2)]) == 2


def test_workers_borrow_nothing_where_a_lease_cannot_be_what_they_ask_for() -> None:
    """A broker chooses the GPU, and lends those of its own node to one process."""
    for asked in (Resources(), replace(ONE, nodes=2), replace(ONE, gpu_type="h100"), replace(ONE, gpu_memory=2**40)):
        assert most_that_compute(TASK, asked, [node(4)]) == 0, asked
    assert most_that_compute(replace(TASK, tasks_per_node=2), ONE, [node(4)]) == 0
    assert most_that_compute(TASK, ONE, []) == 0
    mixed = [node(1), node(1, kind="h100")]
    assert most_that_compute(TASK, ONE, mixed) == 2
    assert most_that_compute(TASK, replace(ONE, gpu_type="a100"), mixed) == 0


def test_on_a_cluster_every_node_with_gpus_has_shards_and_a_broker() -> None:
    nodes = [node(2, name="a.example.org", shards=8), node(2, name="b", shards=8), node(0, name="c")]
    assert shared_nodes(ONE, nodes, {"a", "b"}) == nodes[:2]
    assert shared_nodes(ONE, nodes, {"a"}) == ()
    assert shared_nodes(replace(ONE, gpus=2), nodes, {"a", "b"}) == ()
    assert shared_nodes(ONE, [*nodes, node(1, name="d")], {"a", "b", "d"}) == ()


def test_without_a_call_it_holds_no_gpu() -> None:
    asked = Resources(cpus=3, gpus=2, gpu_type="a100", gpu_memory=2**30)
    assert without_gpus(asked) == Resources(cpus=3)
