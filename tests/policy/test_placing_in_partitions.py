"""Jobs that name a partition run on its nodes alone, and their owners read so."""

from __future__ import annotations

import pytest
from policy_labs import NOW, holding, lab, node, place, waiting

from carrel.core.domain.errors import Impossible
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Snapshot
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.feasible import feasible

PARTS = {
    "cats": Partition(name="cats", nodes=("c[1-2]",)),
    "dogs": Partition(name="dogs", nodes=("d*",), qos=("short",)),
    "all": Partition(name="all"),
}
NODES = [node("c1", "h200", "h200"), node("c2", "h200"), node("d1", "a100", "a100", "a100")]


def starts(snapshot: Snapshot) -> dict[int, str]:
    return {start.job_id: start.node for start in place(snapshot, NOW).starts}


def reason(snapshot: Snapshot, job_id: int) -> tuple[str, str]:
    found = place(snapshot, NOW).wait_of(job_id).reason
    return found.code, found.message


def test_a_job_runs_in_its_partition() -> None:
    waits = [
        waiting(1, 3, partition="cats"), waiting(2, 3, partition="all"), waiting(3, 1, partition="cats"), waiting(4, 1),
        waiting(5, 1, partition="dogs"),
    ]  # fmt: skip
    assert starts(lab(NODES, waits, partitions=PARTS)) == {2: "d1", 3: "c2", 4: "c1"}


def test_every_partition_has_a_first_in_line() -> None:
    """Who is blocked in one partition keeps nobody of another waiting, and is not overtaken in its own."""
    nodes = [node("c1", "h200", "h200"), node("d1", "a100", "a100")]
    busy = [holding(8, "c1", "c1-0", left=9000), holding(9, "d1", "d1-0", left=600)]
    waits = [
        waiting(1, 2, ago=50, partition="cats"), waiting(2, 2, ago=40, partition="dogs"),
        waiting(3, 1, ago=30, partition="dogs", time=601), waiting(4, 1, ago=20, partition="dogs", time=600),
        waiting(5, 1, ago=10, partition="cats", time=9000),
    ]  # fmt: skip
    snapshot = lab(nodes, waits, busy, partitions=PARTS)
    assert starts(snapshot) == {4: "d1", 5: "c1"}
    assert reason(snapshot, 1) == (
        "Resources",
        'needs 2 GPUs on one node of partition "cats"; none is free; in 2 h 30 min at the latest',
    )
    assert reason(snapshot, 2) == (
        "Resources",
        'needs 2 GPUs on one node of partition "dogs"; none is free; in 10 min at the latest',
    )
    assert reason(snapshot, 3)[0] == "Priority"
    assert reason(snapshot, 3)[1].startswith('1 job is ahead of it; needs 1 GPU on one node of partition "dogs"; none is free')


def test_nodes_in_two_partitions_are_promised_once() -> None:
    nodes = [node("c1", "h200", "h200")]
    busy = [holding(8, "c1", "c1-0", "c1-1", left=600)]
    waits = [waiting(1, 2, ago=50, partition="cats", time=1000), waiting(2, 2, ago=40, partition="all", time=1000)]
    pending = place(lab(nodes, waits, busy, partitions=PARTS), NOW).pending
    assert [hold.reason.code for hold in pending] == ["Resources", "Resources"]
    assert [hold.estimated_start for hold in pending] == [NOW + 600, NOW + 1600]


def test_a_partition_that_is_gone() -> None:
    snapshot = lab(NODES, [waiting(1, 1, partition="birds")], partitions=PARTS)
    assert reason(snapshot, 1) == ("PartitionDown", 'partition "birds" does not exist in this lab; start unknown')


def test_what_is_drained_is_named_with_the_partition() -> None:
    nodes = [node("c1", "h200", drained="repair"), node("d1", "a100")]
    snapshot = lab(nodes, [waiting(1, 1, partition="cats")], partitions=PARTS)
    assert reason(snapshot, 1) == (
        "ReqNodeNotAvail",
        'needs 1 GPU on one node of partition "cats"; drained: c1 (repair); start unknown',
    )


@pytest.mark.parametrize(
    ("gpus", "more", "partition", "message"),
    [
        (3, {}, "cats", 'asks for 3 GPUs on one node, but the largest node of partition "cats" has 2. Ask for 2 or fewer'),
        (3, {}, "cats", 'Or choose partition "all", which can run it.'),
        (1, {"gpu_type": "a100"}, "cats", 'There is no GPU of type "a100" in partition "cats".'),
        (1, {}, "dogs", 'Partition "dogs" does not take QoS "batch". It takes: short. Or choose partition "cats" or "all"'),
        (1, {"nodes": 3}, "cats", 'asks for 3 nodes, but partition "cats" has 2 that are large enough.'),
        (1, {"cpus": 17}, "cats", 'asks for 17 CPUs, but the largest node of partition "cats" with 1 GPU has 16.'),
    ],
)
def test_what_never_starts_there_is_refused_with_a_partition_that_fits(
    gpus: int, more: dict[str, object], partition: str, message: str
) -> None:
    wanted = Resources(gpus=gpus, **more)  # type: ignore[arg-type]
    with pytest.raises(Impossible) as refusal:
        feasible(wanted, JobKind.TASK, QoS(name="batch"), NODES, partition=PARTS[partition], partitions=PARTS.values())
    assert message in str(refusal.value)
    assert refusal.value.details["partition"] == partition


def test_what_fits_in_a_partition_is_let_in() -> None:
    feasible(Resources(gpus=3), JobKind.TASK, QoS(name="short"), NODES, partition=PARTS["dogs"], partitions=PARTS.values())
