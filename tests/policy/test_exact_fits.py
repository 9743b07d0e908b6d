"""Jobs that fit to the last processor, byte, device or second: they start, or are promised just that moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from policy_labs import GIB, NOW, Lab, holding, lab, node, place, waiting

from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Waiting
from carrel.core.domain.reservation import Reservation


def promised(found: Lab) -> list[tuple[int, float, tuple[str, ...]]]:
    """Who is promised what, from when on, in seconds from now."""
    assert not found.place()
    return [
        (one.job.id, one.at - found.now, tuple(found.snapshot.nodes[index].name for index in sorted(one.indexes)))
        for one in found.placer.promises
    ]


@pytest.mark.parametrize("asks", [{"cpus": 16}, {"memory": 64 * GIB}, {"gpus": 2}], ids=str)
def test_what_fits_exactly_is_promised_the_moment_at_which_it_does(asks: dict[str, Any]) -> None:
    more = {**{"cpus": 1, "memory": GIB, "gpus": 1}, **asks}
    holds = [holding(8, "n1", "n1-0", left=600, cpus=10, memory=60 * GIB)]
    nodes = [node("n1", "h200", "h200")]
    assert promised(Lab(lab(nodes, [waiting(1, **more)], holds))) == [(1, 600.0, ("n1",))]


@pytest.mark.parametrize("asks", [{"cpus": 16}, {"memory": 64 * GIB}, {"gpus": 2}], ids=str)
def test_a_whole_node_is_promised_when_it_is_not_kept_for_others_any_more(asks: dict[str, Any]) -> None:
    more = {**{"cpus": 1, "memory": GIB, "gpus": 1}, **asks}
    window = Reservation(name="course", begin=NOW + 60, end=NOW + 900, users=frozenset({"cyd"}))
    found = Lab(lab([node("n1", "h200", "h200")], [waiting(1, **more)], reservations=[window]))
    assert promised(found) == [(1, 900.0, ("n1",))]


@pytest.mark.parametrize(
    ("asks", "fits"),
    [
        ({"cpus": 6}, True),
        ({"cpus": 7}, False),
        ({"memory": 4 * GIB}, True),
        ({"memory": 4 * GIB + 1}, False),
        ({"gpus": 1}, True),
        ({"gpus": 2}, False),
    ],
)
def test_it_starts_in_what_is_left_to_the_last_of_it(asks: dict[str, Any], *, fits: bool) -> None:
    more = {**{"cpus": 1, "memory": GIB, "gpus": 1}, **asks}
    holds = [holding(8, "n1", "n1-0", left=600, cpus=10, memory=60 * GIB)]
    found = place(lab([node("n1", "h200", "h200")], [waiting(1, **more)], holds), NOW)
    assert bool(found.starts) is fits


@pytest.mark.parametrize("count", [2, 7])
def test_each_of_many_unlike_jobs_starts_where_exactly_as_much_is_free(count: int) -> None:
    """A job that is larger than all nodes stands before them, and the largest that fits goes first."""
    nodes = [node(f"n{number}", "h200", cpus=number) for number in range(1, count + 1)]
    waits = [waiting(number, ago=number, cpus=number, time=60 + number) for number in range(1, count + 1)]
    found = Lab(lab(nodes, [*waits, waiting(99, ago=99, gpus=1, cpus=count + 1)]))
    assert {(start.job_id, start.node) for start in found.place()} == {(one, f"n{one}") for one in range(1, count + 1)}


def test_gpus_of_as_much_memory_as_each_job_asks_for() -> None:
    """Whoever has asked before, for more, for less, or for any."""
    nodes = [node("n1", "t4", "t4"), node("n2", "a100", "a100"), node("n3", "h200", "h200")]
    asked = [0, 16, 80, 60, 40, 30]
    waits = [waiting(number, ago=90 - number, gpu_memory=asked[number - 1] * GIB) for number in range(1, 7)]
    where = {start.job_id: start.node for start in Lab(lab(nodes, waits)).place()}
    assert where == {1: "n1", 2: "n1", 3: "n3", 4: "n3", 5: "n2", 6: "n2"}
    assert not Lab(lab(nodes, [waiting(1), waiting(2, gpu_memory=81 * GIB)])).look().wait_of(1)
    beyond = Lab(lab(nodes, [waiting(1, ago=9, gpus=2, gpu_memory=41 * GIB), waiting(2, gpu_memory=50 * GIB)]))
    assert [(start.job_id, start.node) for start in beyond.place()] == [(1, "n3")]


def test_the_smallest_of_one_node_that_has_the_memory_is_given() -> None:
    """A whole GPU, or a large slice, is left for whoever needs it; also where it is the only one of its kind."""
    nodes = [node("n1", "h200", "a100", "a100", "t4", "t4", "t4")]
    (start,) = Lab(lab(nodes, [waiting(1, gpu_memory=30 * GIB)])).place()
    assert [uuid for uuid in start.devices if uuid in {device.uuid for device in nodes[0].devices if device.type == "a100"}]


def test_what_somebody_has_who_was_not_placed_is_given_to_nobody_else() -> None:
    """An attempt that an earlier server has left is taken up while others are placed."""
    found = Lab(lab([node("n1", "h200", "h200"), node("n2", "h200", "h200")], [waiting(1)]))
    assert [start.devices for start in found.place()] == [("n1-0",)]
    found.hold(holding(7, "n1", "n1-1", left=600))
    found.hold(holding(8, "n2", "n2-0", left=600))
    for number in (2, 3):
        found.wait(waiting(number))
    assert [(start.job_id, start.devices) for start in found.place()] == [(2, ("n2-1",))]
    found.forget(7)
    assert [(start.job_id, start.devices) for start in found.place()] == [(3, ("n1-1",))]


# ---- promises


@pytest.mark.parametrize(("promises", "where"), [(1, "n2"), (2, "n1"), (3, "n1")])
def test_where_several_are_promised_something_ties_go_by_name_alone(promises: int, where: str) -> None:
    """One promise alone takes the node that would have fewest GPUs left; with more, each stays where it is."""
    nodes = [node("n1", "h200", "h200", "h200"), node("n2", "h200", "h200")]
    holds = [holding(8, "n1", "n1-0", "n1-1", left=600), holding(9, "n2", "n2-0", left=600)]
    waits = [waiting(1, gpus=2)]
    assert promised(Lab(lab(nodes, waits, holds, promises=promises))) == [(1, 600.0, (where,))]


def test_partitions_that_have_no_node_in_common_do_not_change_each_others_promises() -> None:
    nodes = [node("a1", "h200"), node("b1", "h200", "h200", "h200"), node("b2", "h200", "h200")]
    parts = {name: Partition(name=name, nodes=(f"{name}*",)) for name in "ab"}
    holds = [
        holding(7, "a1", "a1-0", left=300),
        holding(8, "b1", "b1-0", "b1-1", left=600),
        holding(9, "b2", "b2-0", left=600),
    ]
    waits = [waiting(1, ago=9, partition="a"), waiting(2, gpus=2, partition="b")]
    assert promised(Lab(lab(nodes, waits, holds, partitions=parts))) == [(1, 300.0, ("a1",)), (2, 600.0, ("b2",))]


@pytest.mark.parametrize(
    ("time", "expected", "at"),
    [
        (600, None, 100.0),
        (601, None, 4300.0),
        # What is promised goes by what a job is expected to run.
        (5000, 600, 100.0),
        (5000, 601, 4300.0),
    ],
)
def test_what_is_over_to_the_second_when_a_promise_begins_is_promised_what_is_free_before(
    time: int, expected: int | None, at: float
) -> None:
    """The first has both GPUs from 700 on, for an hour; one is free from 100 on."""
    holds = [holding(8, "n1", "n1-0", left=100), holding(9, "n1", "n1-1", left=700)]
    waits = [waiting(1, gpus=2, ago=9), waiting(2, time=time, expected=expected)]
    found = promised(Lab(lab([node("n1", "h200", "h200")], waits, holds, promises=2)))
    assert found == [(1, 700.0, ("n1",)), (2, at, ("n1",))]


def two_promised_nodes(small: Waiting) -> Lab:
    """Two nodes with one free GPU each, on both of which a larger job is promised both GPUs from 600 on."""
    nodes = [node("n1", "h200", "h200"), node("n2", "h200", "h200")]
    holds = [holding(8, "n1", "n1-0", left=600), holding(9, "n2", "n2-0", left=600)]
    return Lab(lab(nodes, [waiting(1, gpus=2, ago=9), waiting(2, gpus=2, ago=8), small], holds, promises=2))


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_starts_beside_promises_has_as_many_nodes_as_it_asks_for(nodes: int) -> None:
    (start,) = two_promised_nodes(waiting(3, nodes=nodes, time=600)).place()
    assert [start.node, *(part.node for part in start.others)] == ["n1", "n2"][:nodes]
    assert not two_promised_nodes(waiting(3, nodes=nodes, time=601)).place()


def test_what_is_one_second_too_long_on_one_promised_node_starts_on_the_other() -> None:
    found = two_promised_nodes(waiting(3, time=650))
    found.hold(replace(found.holding[9], ends_by=NOW + 650))
    assert [start.node for start in found.place()] == ["n2"]
