"""What could never start is refused at submit, with what would fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from policy_labs import GIB, NOW, node, place, snapshots

from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Snapshot
from carrel.core.domain.qos import JobKind, QoS
from carrel.core.domain.resources import Resources
from carrel.core.policy.feasible import feasible
from carrel.core.policy.qos import choose_qos
from carrel.engines.slurm.partition import SlurmPartition, slurm_partition
from support.examples import examples

NODES = [
    node("n1", *["h200"] * 4, cpus=32, memory=256 * GIB),
    node("n2", *["a100"] * 2, cpus=64, memory=128 * GIB, drained="disk"),
    node("n3", cpus=128, memory=512 * GIB - 1),
]
BATCH = QoS(name="batch", max_time=7200, max_gpus_per_user=6, kinds=frozenset({JobKind.TASK}))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"gpus": 5},
            "The job asks for 5 GPUs on one node, but the largest node has 4. "
            "Ask for 4 or fewer. Most on one node: 2 of a100, 4 of h200.",
        ),
        (
            {"gpus": 3, "gpu_type": "a100"},
            "The job asks for 3 GPUs (a100) on one node, but the largest node has 2. "
            "Ask for 2 or fewer. Most on one node: 2 of a100, 4 of h200.",
        ),
        (
            {"gpus": 1, "gpu_type": "H200"},
            'There is no GPU of type "H200" here. Did you mean "h200"? '
            "There are: 2 of a100, 4 of h200. Without a type any will do.",
        ),
        (
            {"gpus": 1, "gpu_type": "v100x"},
            'There is no GPU of type "v100x" here. Did you mean "a100"? '
            "There are: 2 of a100, 4 of h200. Without a type any will do.",
        ),
        ({"cpus": 129}, "The job asks for 129 CPUs, but the largest node has 128. Ask for 128 or fewer."),
        (
            {"gpus": 4, "cpus": 33},
            "The job asks for 33 CPUs, but the largest node with 4 GPUs has 32. Ask for 32 or fewer.",
        ),
        (
            {"memory": 1024 * GIB},
            'The job asks for 1T of memory, but the largest node has 511.9G. Ask for "511.9G" or less.',
        ),
        (
            {"gpus": 1, "cpus": 64, "memory": 200 * GIB},
            'No node with 1 GPU has 64 CPUs and 200G of memory together. With 64 CPUs, ask for "128G" or less of memory.',
        ),
        (
            {"time": 7201},
            'The job asks for 7201 s, but QoS "batch" allows 7200 s. Ask for 7200 s or less, or choose another QoS.',
        ),
        (
            {"gpus": 7},
            'The job asks for 7 GPUs, but QoS "batch" allows 6 per user. Ask for 6 or fewer, or choose another QoS.',
        ),
    ],
)
def test_the_refusal_gives_the_numbers_and_what_would_fit(asked: dict[str, object], message: str) -> None:
    with pytest.raises(Impossible) as caught:
        feasible(Resources(**asked), JobKind.TASK, BATCH, NODES)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_the_refusal_names_the_qos_that_would_fit() -> None:
    others = [BATCH, QoS(name="long", max_time=9000), QoS(name="wide"), QoS(name="nap", max_time=60)]
    with pytest.raises(Impossible) as caught:
        feasible(Resources(time=8000), JobKind.TASK, BATCH, NODES, others=others)
    assert caught.value.remedy == 'Ask for 2 h or less, or choose QoS "long" or "wide", which allows it.'
    with pytest.raises(Impossible) as caught:
        feasible(Resources(time=9000), JobKind.SESSION, BATCH, NODES, others=others)
    assert caught.value.remedy == 'Choose QoS "long" or "wide", which allows it.'
    with pytest.raises(Impossible, match="2 per account") as caught:
        feasible(Resources(gpus=3), JobKind.TASK, QoS(name="few", max_gpus_per_account=2), NODES)
    assert caught.value.details == {"gpus": 3, "max_gpus_per_account": 2}
    with pytest.raises(Impossible, match=r'QoS "few" allows 2 in all\. Ask for 2 or fewer'):
        feasible(Resources(gpus=3), JobKind.TASK, QoS(name="few", max_gpus=2), NODES)


def test_what_fits_passes_even_on_a_drained_node() -> None:
    feasible(Resources(gpus=2, gpu_type="a100", cpus=64, memory=128 * GIB, time=7200), JobKind.TASK, BATCH, NODES)
    feasible(Resources(gpus=4, cpus=32, memory=256 * GIB, time=1), JobKind.TASK, BATCH, NODES)
    feasible(Resources(cpus=128), JobKind.TASK, BATCH, NODES)


def test_kinds_limits_and_empty_labs() -> None:
    with pytest.raises(Impossible, match='QoS "batch" does not take a session; it takes: task. Choose another QoS.'):
        feasible(Resources(), JobKind.SESSION, BATCH, NODES)
    with pytest.raises(Impossible, match="has no node"):
        feasible(Resources(), JobKind.TASK, BATCH, [])
    with pytest.raises(Impossible, match="this lab has none"):
        feasible(Resources(gpus=1), JobKind.TASK, BATCH, NODES[2:])
    with pytest.raises(Impossible, match=r"allows 0 per user\. Ask for none"):
        feasible(Resources(gpus=1), JobKind.TASK, QoS(name="cpu", max_gpus_per_user=0), NODES)
    with pytest.raises(Impossible, match="allows no jobs"):
        feasible(Resources(), JobKind.TASK, QoS(name="off", max_jobs_per_user=0), NODES)


@settings(max_examples=examples(60), deadline=None)
@given(snapshots(most_waiting=4))
def test_what_is_feasible_starts_in_an_empty_lab_and_what_is_not_never_does(snapshot: Snapshot) -> None:
    nodes = [node for node in snapshot.nodes if node.drained is None]
    parts = snapshot.partitions
    for job in snapshot.waiting:
        if job.partition not in ("", *parts):
            continue
        alone = Snapshot(nodes=nodes, qos=snapshot.qos, waiting=(job,), holding=(), partitions=parts)
        try:
            feasible(job.resources, JobKind.TASK, snapshot.qos[job.qos], nodes, partition=parts.get(job.partition))
            possible = True
        except Impossible:
            possible = False
        assert possible == bool(place(alone, max(NOW, job.not_before)).starts)


def test_a_qos_is_chosen_by_name_or_as_the_first_that_takes_the_kind() -> None:
    qos = {
        "interactive": QoS(name="interactive", kinds=frozenset({JobKind.SESSION})),
        "batch": BATCH,
        "long": QoS(name="long"),
    }
    assert choose_qos(None, JobKind.TASK, qos) is BATCH
    assert choose_qos("long", JobKind.TASK, qos) is qos["long"]
    with pytest.raises(Invalid) as caught:
        choose_qos("bacth", JobKind.TASK, qos)
    assert str(caught.value) == 'There is no QoS "bacth". Did you mean "batch"? Those that take a task are "batch", "long".'
    with pytest.raises(Invalid) as caught:
        choose_qos("interactive", JobKind.TASK, qos)
    assert str(caught.value) == (
        'QoS "interactive" does not take a task; it takes: session. Those that take a task are "batch", "long".'
    )
    with pytest.raises(Invalid, match="No QoS of this lab takes a session"):
        choose_qos(None, JobKind.SESSION, {"batch": BATCH})


def test_gpus_with_too_little_memory_do_not_count() -> None:
    nodes = [node("n1", "t4", "t4", "a100"), node("n2", "a100", "a100", "h200")]
    feasible(Resources(gpus=3, gpu_memory=40 * GIB), JobKind.TASK, BATCH, nodes)
    for wanted, message in (
        (Resources(gpus=1, gpu_memory=81 * GIB), 'asks for GPUs with 81G, but the largest here (h200) has 80G. Ask for "80G"'),
        (Resources(gpus=1, gpu_type="a100", gpu_memory=80 * GIB), "GPUs with 80G, but the largest here (a100) has 40G."),
        (Resources(gpus=2, gpu_memory=80 * GIB), "asks for 2 GPUs with 80G on one node, but the largest node has 1."),
        (Resources(gpus=2, nodes=2, gpu_memory=40 * GIB), "asks for 2 nodes, but the lab has 1 that is large enough."),
    ):
        with pytest.raises(Impossible) as caught:
            feasible(wanted, JobKind.TASK, BATCH, nodes)
        assert message in str(caught.value)


def test_several_nodes_are_a_matter_of_a_cluster() -> None:
    own, cluster = Partition(name="own"), slurm_partition("cluster", SlurmPartition(partition="main"))
    parts, there = (own, cluster), [node(f"c{number}", cpus=8) for number in range(3)]

    def check(partition: Partition, nodes: int) -> None:
        feasible(
            Resources(nodes=nodes), JobKind.TASK, BATCH, [node("here", cpus=8)], partition=partition, partitions=parts,
            cluster=lambda _partition: there,
        )  # fmt: skip

    check(cluster, 3)
    with pytest.raises(Impossible, match='"cluster" has 3 that are large enough. Ask for 3 or fewer'):
        check(cluster, 4)
    with pytest.raises(Impossible) as caught:
        check(own, 2)
    assert "has 1 that is large enough. Ask for 1, with as many processes there (tasks_per_node)." in str(caught.value)
    assert 'choose partition "cluster"' in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": 1, "gpu_memory": -1}, "gpu_memory is -1 bytes"),
        ({"gpu_memory": 40 * GIB}, "gpu_memory is 40G but gpus is 0. Ask for gpus too"),
    ],
)
def test_memory_of_gpus_that_cannot_be(fields: dict[str, int], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Resources(**fields)  # type: ignore[arg-type]
