"""What simulations are judged by: on small examples by hand, on random ones as a slow computation has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.baselines import Piece, simulate_baseline
from carrel.simulate.equal_part import completions_alone
from carrel.simulate.measures import as_json, bounded_slowdown, distribution, measure, together, utilisation_over_time
from carrel.simulate.outcome import Outcome, Run
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.simulate.traces import read_trace
from carrel.testing.examples import examples

TRACE3 = Path(__file__).parents[1] / "data" / "traces" / "muri" / "trace3.csv"
MURI = Cluster(nodes=8, gpus_per_node=8)

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
    assert (found.jobs, found.refused, found.makespan, found.preemptions) == (3, 1, 200, 1)
    assert found.waits is not None
    assert (found.waits.median, found.waits.p95, found.waits.p99, found.waits.max) == (10, 40, 40, 40)
    assert found.waits.mean == pytest.approx(50 / 3)
    assert found.completions is not None
    assert (found.completions.median, found.completions.max) == (90, 100)
    assert found.slowdown is not None
    assert found.slowdown.mean == pytest.approx((1 + 90 / 50 + 50 / 20) / 3)
    assert found.gpu_hours * 3600 == pytest.approx(100 + 100 + 40)
    assert found.gpu_hours_lost == pytest.approx(20 / 3600)
    assert found.utilisation == pytest.approx(240 / 400)
    assert found.utilisation_while_submitting == pytest.approx(200 / 300)
    assert [(user.user, user.jobs, user.mean_wait, user.mean_completion) for user in found.users] == [
        ("ann", 2, 5, 75),
        ("bob", 1, 40, 90),
    ]
    assert found.fairness is None  # nobody says what users would have alone


def test_without_the_trace_all_that_ran_counts_as_needed() -> None:
    found = measure(outcome(RUNS))
    assert found.gpu_hours_lost is None
    assert found.slowdown is not None
    assert found.slowdown.mean == pytest.approx((1 + 90 / 50 + 50 / 40) / 3)


def test_a_job_that_was_cut_short_has_lost_nothing() -> None:
    found = measure(outcome([Run(0, "ann", 1, 0, 0, 60, 60)]), trace(JOBS))
    assert found.gpu_hours_lost == 0


def test_what_nothing_ran_in_has_no_statistics() -> None:
    found = measure(outcome([], refused=[(0, "too large")]), trace(JOBS))
    assert (found.jobs, found.refused, found.makespan, found.gpu_hours) == (0, 1, 0, 0)
    assert (found.waits, found.completions, found.slowdown, found.utilisation, found.fairness) == (None,) * 5
    assert utilisation_over_time(outcome([])) == []
    json.dumps(as_json(found), allow_nan=False)


def test_jobs_that_all_come_at_once_have_no_time_of_submission_to_be_measured_over() -> None:
    found = measure(outcome([Run(0, "ann", 1, 5, 5, 15, 10)]))
    assert found.utilisation == pytest.approx(0.5)
    assert found.utilisation_while_submitting is None


def test_a_trace_of_something_else_is_refused() -> None:
    with pytest.raises(Invalid, match=r"Job 2 of the outcome of some is not in the trace drawn up here\. Give the trace"):
        measure(outcome(RUNS), trace(JOBS[:2]))


def test_short_jobs_do_not_drown_the_others_in_the_slowdown() -> None:
    assert bounded_slowdown(100, 0) == 10
    assert bounded_slowdown(5, 1) == 1
    assert bounded_slowdown(300, 100) == 3


def test_fairness_is_that_of_the_user_who_would_be_better_off_alone() -> None:
    """Two GPUs, one for each. Ann's first job keeps bob's only one waiting, which needs both: alone he would have as many."""
    alone = completions_alone(trace(JOBS), 2)
    assert alone == {0: 100, 1: 50, 2: 20}
    found = measure(outcome(RUNS), trace(JOBS), alone=alone)
    assert {user.user: user.finish_time_fairness for user in found.users} == {"ann": 150 / 120, "bob": 90 / 50}
    assert found.fairness == 90 / 50
    assert as_json(found)["finish_time_fairness"] == 90 / 50


def test_on_an_equal_part_a_user_waits_for_their_own_jobs_alone() -> None:
    jobs = [TraceJob(id=number, submitted=0, duration=10, gpus=1, user="ann") for number in range(4)]
    jobs += [
        TraceJob(id=4, submitted=0, duration=10, gpus=1, user="bob"),
        TraceJob(id=5, submitted=0, duration=1, gpus=9, user="cyd"),
    ]
    assert completions_alone(trace(jobs), 4) == {0: 10, 1: 10, 2: 20, 3: 20, 4: 10}  # what is too large for all is nobody's


def test_users_together_are_weighed_by_their_jobs() -> None:
    ann, bob = measure(outcome(RUNS), trace(JOBS)).users
    both = together([ann, bob], "both")
    assert (both.user, both.jobs) == ("both", 3)
    assert both.mean_wait == pytest.approx(50 / 3)
    assert both.mean_slowdown == pytest.approx((1 + 90 / 50 + 50 / 20) / 3)


def test_use_over_time_follows_the_jobs() -> None:
    found = utilisation_over_time(outcome(RUNS), points=4)
    assert [moment for moment, _ in found] == [25, 75, 125, 175]
    assert [share for _, share in found] == pytest.approx([0.5, 0.5, 1.0, 0.4])


def test_use_of_a_job_that_was_stopped_is_exact_with_its_pieces_and_spread_evenly_without() -> None:
    stopped = outcome([Run(0, "ann", 2, 0, 0, 100, 50, preemptions=1), Run(1, "bob", 2, 50, 50, 100, 50)])
    pieces = [Piece(0, 2, 0.0, 50.0), Piece(1, 2, 50.0, 100.0)]
    assert [share for _, share in utilisation_over_time(stopped, points=2, pieces=pieces)] == pytest.approx([1, 1])
    # Evenly, it would take half of both GPUs while bob has them; that half is moved to where there is room.
    assert [share for _, share in utilisation_over_time(stopped, points=2)] == pytest.approx([1, 1])
    assert measure(stopped, pieces=pieces).utilisation_while_submitting == pytest.approx(1)
    assert measure(stopped).utilisation_while_submitting == pytest.approx(0.5)


def test_a_distribution_says_which_share_does_not_exceed_a_value() -> None:
    assert distribution([3, 1, 1, 2]) == [(1, 0.5), (2, 0.75), (3, 1.0)]
    assert distribution([]) == []
    many = distribution(range(100_000), points=50)
    assert len(many) == 50
    assert many[0] == (0, 0.00001)
    assert many[-1] == (99_999, 1.0)


def test_too_few_points_are_refused() -> None:
    with pytest.raises(Invalid, match="Ask for 2 or more"):
        distribution([1], points=1)
    with pytest.raises(Invalid, match="Ask for 1 or more"):
        utilisation_over_time(outcome(RUNS), points=0)


def test_data_for_programs_has_units_in_its_names() -> None:
    data = as_json(measure(outcome(RUNS), trace(JOBS)))
    assert data["wait_seconds"] == {"mean": pytest.approx(50 / 3), "median": 10, "p95": 40, "p99": 40, "max": 40}
    assert data["users"][1] == {
        "user": "bob",
        "jobs": 1,
        "gpu_hours": pytest.approx(100 / 3600),
        "mean_wait_seconds": 40,
        "mean_completion_seconds": 90,
        "mean_bounded_slowdown": 1.8,
        "finish_time_fairness": None,
    }
    assert json.loads(json.dumps(data, allow_nan=False)) == data


@pytest.mark.parametrize(
    ("policy", "wait", "completion"), [("fifo", 944_350.80, 991_215.65), ("first-fit", 434_048.39, 480_913.25)]
)
def test_averages_of_the_reference_results(policy: str, wait: float, completion: float) -> None:
    recorded = read_trace(TRACE3)
    found = measure(simulate_baseline(policy, recorded, MURI), recorded)
    assert found.waits is not None
    assert found.completions is not None
    assert [found.waits.mean, found.completions.mean] == pytest.approx([wait, completion], abs=0.006)
    assert found.gpu_hours_lost == 0


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


def nearest_rank(values: Sequence[float], percent: int) -> float:
    return sorted(values)[max(1, ceil(percent * len(values) / 100)) - 1]


def in_line(run: Run) -> float:
    """By the definition: all time from submission to end in which the job does not run."""
    return max(0.0, run.end - run.submitted - run.ran) if run.preemptions else run.start - run.submitted


@given(random_runs())
def test_measures_agree_with_a_slow_computation(runs: list[Run]) -> None:
    found = measure(outcome(runs, gpus=100))
    waits = [in_line(run) for run in runs]
    completions = [run.end - run.submitted for run in runs]
    slowdowns = [max(1.0, (run.end - run.submitted) / max(run.ran, 10.0)) for run in runs]
    for spread, values in ((found.waits, waits), (found.completions, completions), (found.slowdown, slowdowns)):
        assert spread is not None
        assert spread.mean == pytest.approx(fmean(values))
        expected = [nearest_rank(values, percent) for percent in (50, 95, 99, 100)]
        assert [spread.median, spread.p95, spread.p99, spread.max] == expected
    begin, end = min(run.submitted for run in runs), max(run.end for run in runs)
    used = sum(run.gpus * run.ran for run in runs)
    assert found.makespan == end - begin
    assert found.gpu_hours == pytest.approx(used / 3600)
    if end > begin:
        assert found.utilisation == pytest.approx(used / (100 * (end - begin)), abs=1e-9)
    assert sum(user.jobs for user in found.users) == len(runs)
    for user in found.users:
        assert user.mean_wait == pytest.approx(fmean(in_line(run) for run in runs if run.user == user.user))


@given(random_runs(), st.integers(1, 40))
def test_use_over_time_agrees_with_looking_at_each_part(runs: list[Run], points: int) -> None:
    begin, end = min(run.submitted for run in runs), max(run.end for run in runs)
    found = utilisation_over_time(outcome(runs, gpus=100), points)
    if end <= begin:
        assert found == []
        return
    width = (end - begin) / points
    for index, (moment, share) in enumerate(found):
        low, high = begin + index * width, begin + (index + 1) * width
        overlaps = [(run, max(0.0, min(run.end, high) - max(run.start, low))) for run in runs if run.end > run.start]
        used = sum(run.gpus * run.ran / (run.end - run.start) * overlap for run, overlap in overlaps)
        assert moment == pytest.approx((low + high) / 2)
        assert share == pytest.approx(used / (100 * width), abs=1e-6)


@settings(max_examples=examples(50))
@given(random_runs(), st.integers(1, 40))
def test_never_more_than_all_gpus_are_in_use_and_nothing_is_forgotten(runs: list[Run], points: int) -> None:
    begin, end = min(run.submitted for run in runs), max(run.end for run in runs)
    found = utilisation_over_time(outcome(runs, gpus=3), points)
    used = sum(run.gpus * run.ran for run in runs if run.end > run.start)
    assert all(-1e-9 <= share <= 1 + 1e-9 for _, share in found)
    if found:
        total = sum(share for _, share in found) * 3 * (end - begin) / points
        assert total == pytest.approx(min(used, 3 * (end - begin)), abs=1e-6)


@given(st.lists(st.floats(0, 1e6)), st.integers(2, 30))
def test_each_point_of_a_distribution_is_true(values: list[float], points: int) -> None:
    found = distribution(values, points)
    assert len(found) <= points
    for value, share in found:
        assert share == pytest.approx(sum(1 for other in values if other <= value) / len(values))
    assert bool(found) == bool(values)
    if values:
        assert (found[0][0], found[-1]) == (min(values), (max(values), 1.0))
