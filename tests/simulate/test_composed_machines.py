"""How many GPUs machines from parts save at equal waits, on work so small that the answer is known."""

from __future__ import annotations

import pytest

from carrel.core.domain.errors import Invalid
from carrel.simulate.composed import compare_layouts
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.study import EASY_RULES
from carrel.simulate.trace import Cluster, Trace, TraceJob

NODES = nodes_of(Cluster(nodes=2, gpus_per_node=4))


def _needs(gpus: list[int], *, small: float = 0.0, attach: float = 0.0) -> dict[str, int]:
    jobs = [TraceJob(id=number, submitted=0.0, duration=1000.0, gpus=count) for number, count in enumerate(gpus)]
    found = compare_layouts(Trace(name="small", jobs=jobs), NODES, EASY_RULES, small=small, attach=attach)
    return {one.layout: one.gpus for one in found}


def test_a_pool_needs_no_gpus_that_lie_beside_a_job() -> None:
    assert _needs([3, 3]) == {"nodes": 8, "pool": 6}
    assert _needs([4, 4]) == {"nodes": 8, "pool": 8}


def test_the_time_in_which_machines_are_made_counts_as_waiting() -> None:
    assert _needs([3, 3], attach=1.0) == {"nodes": 8, "pool": 8}
    # Two of three wait, and on average no longer.
    assert _needs([3, 3, 3, 3], attach=1.0)["pool"] == 8


def test_small_jobs_share_gpus_that_are_cut() -> None:
    assert _needs([3, 3, 1, 1], small=1.0) == {"nodes": 8, "nodes, slices": 8, "pool": 8, "pool, slices": 7}


def test_where_nothing_runs_nothing_is_compared() -> None:
    with pytest.raises(Invalid, match="nothing runs"):
        _needs([0])
