"""What simulations are judged by: on small examples by hand, on random ones as a slow computation has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baselines import simulate_baseline
from carrel.simulate.equal_part import completions_alone
from carrel.simulate.measures import measure
from carrel.simulate.trace import Cluster, Outcome, Run, Trace, TraceJob

#: Two GPUs: ann has one for 100 s, bob waits 40 s for both after her, ann's second is stopped once and runs 20 s for nothing.
RUNS = [
    Run(0, "ann", 1, 0.0, 0.0, 100.0, 100.0),
    Run(1, "bob", 2, 60.0, 100.0, 150.0, 50.0),
    Run(2, "ann", 1, 150.0, 150.0, 200.0, 40.0, preemptions=1),
]
JOBS = [
    TraceJob(id=0, submitted=0, duration=100, gpus=1, user="ann"),
    TraceJob(id=1, submitted=60, duration=50, gpus=2, user="bob"),
    TraceJob(id=2, submitted=150, duration=20, gpus=1, user="ann"),
]


def outcome(runs: Sequence[Run], gpus: int = 2, refused: Sequence[tuple[int, str]] = ()) -> Outcome:
    return Outcome(policy="some", trace="drawn up here", gpus=gpus, runs=runs, refused=refused)


def trace(jobs: Sequence[TraceJob]) -> Trace:
    return Trace(name="drawn up here", jobs=jobs)


def test_a_small_outcome_is_measured_as_by_hand() -> None:
    found = measure(outcome(RUNS, refused=[(3, "too large")]), trace(JOBS))
    assert (found.jobs, found.refused, found.makespan_seconds, found.preemptions) == (3, 1, 200, 1)
    assert (found.wait_seconds.median, found.wait_seconds.p95, found.wait_seconds.p99, found.wait_seconds.max) == (10, 40, 40, 40)
    assert found.wait_seconds.mean == pytest.approx(50 / 3)
    assert (found.completion_seconds.median, found.completion_seconds.max) == (90, 100)
    assert found.bounded_slowdown.mean == pytest.approx((1 + 90 / 50 + 50 / 20) / 3)
    assert found.gpu_hours * 3600 == pytest.approx(100 + 100 + 40)
    assert found.gpu_hours_lost == pytest.approx(20 / 3600)
    assert found.utilisation == pytest.approx(240 / 400)
    assert found.utilisation_while_submitting == pytest.approx(200 / 300)
    assert [(user.user, user.jobs, user.mean_wait_seconds, user.mean_completion_seconds) for user in found.users] == [
        ("ann", 2, 5, 75),
        ("bob", 1, 40, 90),
    ]
    assert found.finish_time_fairness is None  # nobody says what users would have alone


def test_a_job_that_was_cut_short_has_lost_nothing() -> None:
    found = measure(outcome([Run(0, "ann", 1, 0, 0, 60, 60)]), trace(JOBS))
    assert found.gpu_hours_lost == 0


def test_fairness_is_that_of_the_user_who_would_be_better_off_alone() -> None:
    """Two GPUs, one for each. Ann's first job keeps bob's only one waiting, which needs both: alone he would have as many."""
    alone = completions_alone(trace(JOBS), 2)
    assert alone == {0: 100, 1: 50, 2: 20}
    found = measure(outcome(RUNS), trace(JOBS), alone=alone)
    assert {user.user: user.finish_time_fairness for user in found.users} == {"ann": 150 / 120, "bob": 90 / 50}
    assert found.finish_time_fairness == 90 / 50
    assert asdict(found)["finish_time_fairness"] == 90 / 50


def test_on_an_equal_part_a_user_waits_for_their_own_jobs_alone() -> None:
    jobs = [TraceJob(id=number, submitted=0, duration=10, gpus=1, user="ann") for number in range(4)]
    jobs += [
        TraceJob(id=4, submitted=0, duration=10, gpus=1, user="bob"),
        TraceJob(id=5, submitted=0, duration=1, gpus=9, user="cyd"),
    ]
    assert completions_alone(trace(jobs), 4) == {0: 10, 1: 10, 2: 20, 3: 20, 4: 10}  # what is too large for all is nobody's


@st.composite
def random_runs(draw: st.DrawFn) -> list[Run]:
    """Any, whether or not they fit on the GPUs."""
    seconds = st.integers(0, 500).map(float)
    runs = []
    for id in range(draw(st.integers(1, 12))):
        submitted, wait, ran, stopped = (
            draw(seconds),
            draw(seconds),
            draw(seconds),
            draw(st.sampled_from([0.0, 0.0, 10.0, 200.0])),
        )
        start = submitted + wait
        gpus = draw(st.integers(0, 4))
        runs.append(
            Run(id, draw(st.sampled_from(["a", "b", "c"])), gpus, submitted, start, start + ran + stopped, ran, int(stopped > 0))
        )
    return runs


def needs(runs: Sequence[Run]) -> Trace:
    """A trace whose jobs need what they ran."""
    return trace([TraceJob(id=run.id, submitted=run.submitted, duration=run.ran, gpus=run.gpus, user=run.user) for run in runs])


def nearest_rank(values: Sequence[float], percent: int) -> float:
    return sorted(values)[max(1, ceil(percent * len(values) / 100)) - 1]


def in_line(run: Run) -> float:
    """By the definition: all time from submission to end in which the job does not run."""
    return max(0.0, run.end - run.submitted - run.ran) if run.preemptions else run.start - run.submitted


@given(random_runs())
def test_measures_agree_with_a_slow_computation(runs: list[Run]) -> None:
    found = measure(outcome(runs, gpus=100), needs(runs))
    waits = [in_line(run) for run in runs]
    completions = [run.end - run.submitted for run in runs]
    slowdowns = [max(1.0, (run.end - run.submitted) / max(run.ran, 10.0)) for run in runs]
    spreads = (found.wait_seconds, found.completion_seconds, found.bounded_slowdown)
    for spread, values in zip(spreads, (waits, completions, slowdowns), strict=True):
        assert spread.mean == pytest.approx(fmean(values))
        expected = [nearest_rank(values, percent) for percent in (50, 95, 99, 100)]
        assert [spread.median, spread.p95, spread.p99, spread.max] == expected
    begin, end = min(run.submitted for run in runs), max(run.end for run in runs)
    used = sum(run.gpus * run.ran for run in runs)
    assert found.makespan_seconds == end - begin
    assert found.gpu_hours == pytest.approx(used / 3600)
    if end > begin:
        assert found.utilisation == pytest.approx(used / (100 * (end - begin)), abs=1e-9)
    assert sum(user.jobs for user in found.users) == len(runs)
    for user in found.users:
        assert user.mean_wait_seconds == pytest.approx(fmean(in_line(run) for run in runs if run.user == user.user))


@given(random_runs())
def test_use_while_jobs_are_submitted_is_what_overlaps_that_time(runs: list[Run]) -> None:
    begin, last = min(run.submitted for run in runs), max(run.submitted for run in runs)
    found = measure(outcome(runs, gpus=100), needs(runs)).utilisation_while_submitting
    if last <= begin:
        assert found is None
        return
    used = sum(
        run.gpus * run.ran / (run.end - run.start) * max(0.0, min(run.end, last) - run.start)
        for run in runs
        if run.end > run.start
    )
    assert found == pytest.approx(used / (100 * (last - begin)), abs=1e-9)
    few = measure(outcome(runs, gpus=1), needs(runs)).utilisation_while_submitting
    assert 0 <= few <= 1


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 30), st.integers(0, 5), st.sampled_from(["ann", "bob"])),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 6),
)
def test_an_equal_part_is_a_node_of_ones_own_by_first_fit(rows: list[tuple[int, int, int, str]], gpus: int) -> None:
    rows.sort(key=lambda row: row[0])
    jobs = [
        TraceJob(id=number, submitted=float(at), duration=float(seconds), gpus=many, user=user)
        for number, (at, seconds, many, user) in enumerate(rows)
    ]
    found = completions_alone(trace(jobs), gpus)
    fitting = [job for job in jobs if job.gpus <= gpus]
    users = {job.user for job in fitting}
    assert found.keys() == {job.id for job in fitting}
    for user in users:
        own = [job for job in fitting if job.user == user]
        part = max(gpus // len(users), *(job.gpus for job in own), 1)
        runs = simulate_baseline("first-fit", trace(own), Cluster(nodes=1, gpus_per_node=part)).runs
        assert {run.id: found[run.id] for run in runs} == pytest.approx({run.id: run.completion for run in runs})
