"""Jobs of a partition whose nodes Slurm chooses: limits alone hold them back, and they take no room from anybody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policy_labs import NOW, holding, lab, node, place, waiting

from carrel.core.domain.errors import Impossible
from carrel.core.domain.partition import Partition
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.feasible import feasible
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition

CLUSTER = slurm_partition("cats", SlurmPartition(partition="gpu"))
HERE = Partition(name="here")
PARTS = {"cats": CLUSTER, "here": HERE}
NODES = [node("n1", "h200", "h200")]


def test_they_start_at_once_whatever_is_free_here() -> None:
    waits = [waiting(1, 8, partition="cats", nodes=40), waiting(2, 2, partition="here"), waiting(3, 8, partition="cats")]
    starts = place(lab(NODES, waits, partitions=PARTS), NOW).starts
    assert {start.job_id: (start.node, len(start.devices)) for start in starts} == {
        1: ("slurm:cats", 0), 2: ("n1", 2), 3: ("slurm:cats", 0),
    }  # fmt: skip


def test_limits_hold_them_back_together_with_what_runs_here() -> None:
    qos = {"batch": QoS(name="batch", max_gpus_per_user=3)}
    busy = replace(holding(9, "slurm:cats", owner="ada", left=600), resources=Resources(gpus=2, cpus=1))
    waits = [waiting(1, 2, ago=20, partition="cats"), waiting(2, 2, ago=10, partition="here"), waiting(3, 0, partition="cats")]
    placement = place(lab(NODES, waits, [busy], qos=qos, partitions=PARTS), NOW)
    assert [start.job_id for start in placement.starts] == [3]
    held = placement.wait_of(1)
    assert held.reason.code == "QOSMaxGRESPerUser"
    assert held.reason.message == 'needs 2 GPUs; its owner holds 2 of at most 3 GPUs in QoS "batch"; in 10 min at the latest'


def test_what_slurm_can_never_run_is_refused_where_that_is_known() -> None:
    big = [node("c1", "a100", "a100", cpus=64)]

    def check(kind: JobKind = JobKind.TASK, *, known: bool = True, **wanted: object) -> None:
        resources = Resources(**wanted)  # type: ignore[arg-type]
        cluster = (lambda _: big) if known else (lambda _: [])
        feasible(resources, kind, QoS(name="batch"), NODES, partition=CLUSTER, partitions=PARTS.values(), cluster=cluster)

    check(cpus=64, gpus=2)
    check(cpus=640, known=False)
    with pytest.raises(Impossible, match='3 GPUs on one node, but the largest node of partition "cats" has 2'):
        check(gpus=3)
    with pytest.raises(Impossible, match='type "h200" in partition "cats".*Or choose partition "here"'):
        check(gpus=1, gpu_type="h200")
    check(JobKind.SESSION)
    with pytest.raises(Impossible, match="does not say how much its GPUs have"):
        check(gpus=1, gpu_memory=1024**3)
