"""What of GPUs a session gets, by where it is to run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.errors import Impossible, Invalid
from carrel.core.domain.node import Device, Node
from carrel.core.policy.session_gpus import SessionGpus, check_gpus, gpus_of_engine, gpus_on_own_nodes


def node(gpus: int, shards: int = 0) -> Node:
    devices = tuple(Device(uuid=f"g{number}", index=number, type="a", name="a", memory=1) for number in range(gpus))
    return Node(name="n", cpus=4, memory=2**30, devices=devices, shards=shards)


def test_on_the_labs_own_nodes_cells_borrow() -> None:
    assert gpus_on_own_nodes(None, [node(2)], reserve=False) == SessionGpus(gpus=1)
    assert gpus_on_own_nodes(None, [node(0)], reserve=False) == SessionGpus(gpus=0)
    assert gpus_on_own_nodes(2, [node(1), node(2)], reserve=True) == SessionGpus(gpus=2, whole=2)
    with pytest.raises(Impossible, match="asks for 3 GPUs, but no node has more than 2"):
        gpus_on_own_nodes(3, [node(2)], reserve=False)
    with pytest.raises(Impossible, match="no node has more than 0"):
        gpus_on_own_nodes(None, [], reserve=True)


def test_on_a_cluster_one_gpu_is_a_shard_where_there_are_some() -> None:
    assert gpus_of_engine(None, [node(4), node(4, 8)], reserve=False) == SessionGpus(gpus=1, shards=1)
    assert gpus_of_engine(1, [node(4, 8)], reserve=True) == SessionGpus(gpus=1, whole=1)
    assert gpus_of_engine(2, [node(4, 8)], reserve=False) == SessionGpus(gpus=2, whole=2)


def test_on_a_cluster_without_shards_a_gpu_has_to_be_asked_for() -> None:
    assert gpus_of_engine(None, [node(4)], reserve=False) == SessionGpus(gpus=0)
    assert gpus_of_engine(1, [node(4)], reserve=False) == SessionGpus(gpus=1, whole=1)
    # While Slurm has not said which nodes there are, nothing is known of shards.
    assert gpus_of_engine(None, [], reserve=False) == SessionGpus(gpus=0)
    assert gpus_of_engine(None, [], reserve=True) == SessionGpus(gpus=1, whole=1)


@given(st.none() | st.integers(0, 9), st.booleans(), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=3))
def test_nobody_gets_less_than_they_asked_for_or_holds_the_same_twice(
    gpus: int | None, reserve: bool, nodes: list[tuple[int, int]]
) -> None:
    found = gpus_of_engine(gpus, [node(*one) for one in nodes], reserve=reserve)
    assert found.gpus == gpus or gpus is None
    assert (found.whole, found.shards) in ((found.gpus, 0), (0, found.gpus))
    assert not (reserve and found.shards)


def test_numbers_that_no_session_can_have_are_refused() -> None:
    for gpus, reserve in ((-1, False), (0, True)):
        with pytest.raises(Invalid):
            check_gpus(gpus, reserve=reserve)
    check_gpus(None, reserve=True)
