"""A class of service whose short jobs go first: by how much, how far, and what the lab makes of it."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from policy_labs import waiting

from carrel.core.domain.expectation import Expected
from carrel.core.domain.qos import QoS
from carrel.core.domain.rules import LabRules
from carrel.core.policy.short_first import LATEST, late_by
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.trace import Cluster, Trace, TraceJob

HOUR = 3600.0


def expected(median: float) -> Expected:
    return Expected(median=median, low=median / 2, high=median * 2, of=9)


def test_a_job_is_later_by_the_gpu_time_that_it_should_take() -> None:
    assert late_by(waiting(1, 4, time=36000), 0.5, expected(600)) == 4 * 600 * 0.5
    assert late_by(waiting(1, 0, time=36000), 1.0, expected(600)) == 600
    assert late_by(waiting(1, 2, time=3600), 1.0, None) == 2 * 3600


@given(st.integers(0, 8), st.integers(1, 10**7), st.floats(0, 1000), st.none() | st.floats(0, 10**8))
def test_nobody_is_later_by_more_than_a_bound(gpus: int, time: int, factor: float, median: float | None) -> None:
    late = late_by(waiting(1, gpus, time=time), factor, None if median is None else expected(median))
    assert 0 <= late <= LATEST


def started(short_first: float, *jobs: TraceJob) -> Mapping[int, float]:
    """When each job starts on one GPU."""
    rules = LabRules(
        qos={"all": QoS(name="all", short_first=short_first)}, default_qos="all", session_qos="all", share_weight=0.0
    )
    runs = simulate_lab(rules, Trace(name="few", jobs=jobs), nodes_of(Cluster(nodes=1, gpus_per_node=1))).runs
    return {run.id: run.start for run in runs}


def job(number: int, at: float, hours: float) -> TraceJob:
    return TraceJob(id=number, submitted=at, duration=hours * HOUR, gpus=1, time=int(hours * HOUR))


def test_the_short_one_goes_first_and_a_long_one_that_has_waited_goes_before_it() -> None:
    first, long, short = job(1, 0, 1), job(2, 1, 10), job(3, 2, 2)
    assert started(0, first, long, short) == {1: 0, 2: HOUR, 3: 11 * HOUR}
    assert started(1, first, long, short) == {1: 0, 3: HOUR, 2: 3 * HOUR}
    # Nine hours after the long one a job of two hours is no more urgent.
    assert started(1, job(1, 0, 9), long, job(3, 8.5 * HOUR, 2)) == {1: 0, 2: 9 * HOUR, 3: 19 * HOUR}
