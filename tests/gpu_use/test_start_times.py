"""Medians and percentiles of how long jobs take to begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carrel.core.gpu_use import StartFacts, StartTimes, Times

START = StartFacts(
    qos="normal",
    kind="task",
    node="bench",
    submitted_at=100.0,
    leased_at=110.0,
    started_at=113.0,
    output_at=120.0,
    metric_at=130.0,
)


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_that_so_many_do_not_exceed(seconds: list[int], percent: int) -> None:
    times = Times()
    for one in seconds:
        times.add(one)
    (found,) = times.percentiles(percent)
    enough = [value for value in seconds if 100 * sum(one <= value for one in seconds) >= percent * len(seconds)]
    assert found == min(enough)


def test_none_have_no_median_and_two_clocks_give_no_time_below_zero() -> None:
    times = Times()
    assert times.percentiles(50, 95) == (None, None)
    times.add(-0.5)
    assert times.percentiles(50) == (0.0,)


def figures(*starts: StartFacts) -> dict[str, list[tuple[int, float | None]]]:
    times = StartTimes()
    times.add(starts)
    return {
        name: [
            (len(each), each.percentiles(50)[0]) for each in (one.waited, one.prepared, one.silent, one.to_output, one.to_metric)
        ]
        for name, one in times.classes.items()
    }


def test_each_class_has_its_own_times() -> None:
    batch = START._replace(qos="batch", leased_at=200.0, started_at=201.0, output_at=None, metric_at=None)
    assert figures(START, batch) == {
        "normal": [(1, 10.0), (1, 3.0), (1, 7.0), (1, 20.0), (1, 30.0)],
        "batch": [(1, 100.0), (1, 1.0), (0, None), (0, None), (0, None)],
    }


def test_what_did_not_begin_counts_as_far_as_it_came() -> None:
    """Its environment could not be built, or it still prepares."""
    assert figures(START._replace(started_at=None, output_at=None)) == {"normal": [(1, 10.0), *[(0, None)] * 4]}


def test_a_job_of_a_cluster_waits_until_it_starts_there() -> None:
    there = START._replace(node="slurm:gpu")
    assert figures(there) == {"normal": [(1, 13.0), (0, None), (1, 7.0), (1, 20.0), (1, 30.0)]}
    assert figures(there._replace(started_at=None, output_at=None)) == {"normal": [(0, None)] * 5}
