"""What a task that gives its GPU to cells asks of Slurm."""

from __future__ import annotations

import pytest

from carrel.core.domain.node import Device, Node
from carrel.core.domain.resources import Resources
from carrel.core.domain.slurm import SlurmRequest
from carrel.core.domain.task import Launcher, TaskSpec
from carrel.engines.slurm.task_shards import task_shards

pytestmark = pytest.mark.quick

ONE = Resources(gpus=1)
TASK = TaskSpec(entry_point="main", command="true", snapshot="")


def node(gpus: int, shards: int = 0, kind: str = "a100") -> Node:
    devices = tuple(Device(uuid=f"g{number}", index=number, type=kind, name=kind, memory=1) for number in range(gpus))
    return Node(name="n", cpus=4, memory=2**30, devices=devices, shards=shards)


def test_all_shares_of_a_gpu_but_one() -> None:
    assert task_shards(ONE, TASK, [node(4, 32), node(2, 16), node(0)]) == 7
    assert task_shards(Resources(gpus=1, gpu_type="a100"), TASK, [node(1, 3)]) == 2


def test_the_whole_gpu_where_shares_would_not_do() -> None:
    for nodes in ([], [node(0)], [node(4)], [node(1, 2)], [node(4, 32), node(4, 16)], [node(4, 32), node(4)], [node(4, 30)]):
        assert task_shards(ONE, TASK, nodes) == 0, nodes
    mixed = [node(1, 8), node(1, 8, kind="h100")]
    assert task_shards(ONE, TASK, mixed) == 7
    assert task_shards(Resources(gpus=1, gpu_type="h100"), TASK, mixed) == 0
    assert task_shards(Resources(gpus=2), TASK, [node(4, 32)]) == 0
    assert task_shards(Resources(gpus=1, nodes=2), TASK, [node(4, 32)]) == 0
    assert task_shards(Resources(gpus=0), TASK, [node(4, 32)]) == 0


def test_groups_and_options_that_speak_of_gpus_keep_theirs() -> None:
    there = [node(4, 32)]
    assert task_shards(ONE, TaskSpec(entry_point="main", command="true", snapshot="", tasks_per_node=2), there) == 0
    group = TaskSpec(entry_point="main", command="true", snapshot="", launcher=Launcher.TORCHRUN)
    assert task_shards(ONE, group, there) == 0
    for request in (SlurmRequest(options=("--gpu-bind=none",)), SlurmRequest(exclusive="exclusive")):
        assert task_shards(ONE, TaskSpec(entry_point="main", command="true", snapshot="", slurm=request), there) == 0
        assert task_shards(ONE, TASK, there, request) == 0
    assert task_shards(ONE, TASK, there, SlurmRequest(options=("--nice=7",))) == 7
