"""The reference policies do what the simulators of their authors do, to the second, and what they promise on any trace."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines import BASELINES, Piece, simulate_baseline
from baselines.packing import Nodes, Placement
from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Outcome, Run, Trace, TraceJob
from foreign_traces import read_trace
from support.examples import examples

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parents[1] / "data" / "traces"
MURI = Cluster(nodes=8, gpus_per_node=8)
PREEMPTIVE = ("srtf", "srsf", "tiresias")


def _trace(*jobs: tuple[float, float, int]) -> Trace:
    """Jobs as (submitted, duration, GPUs), numbered from 0."""
    return Trace(
        name="drawn up here",
        jobs=[TraceJob(id=id, submitted=at, duration=runs, gpus=gpus) for id, (at, runs, gpus) in enumerate(jobs)],
    )


def _simulate(name: str, trace: Trace, cluster: Cluster) -> tuple[Outcome, list[Piece]]:
    pieces: list[Piece] = []
    return simulate_baseline(name, trace, cluster, pieces=pieces.append), pieces


def _spans(name: str, cluster: Cluster, *jobs: tuple[float, float, int]) -> list[tuple[float, float]]:
    """Start and end of each job."""
    return [(run.start, run.end) for run in simulate_baseline(name, _trace(*jobs), cluster).runs]


def _reference(name: str) -> dict[int, tuple[float, float]]:
    with (TRACES / "reference" / f"muri-trace3-{name}.csv").open() as file:
        return {int(row["job_id"]): (float(row["start_time"]), float(row["end_time"])) for row in csv.DictReader(file)}


def _most_in_use(pieces: Sequence[Piece]) -> int:
    """GPUs in use at the busiest moment."""
    changes = sorted([(piece.start, piece.gpus) for piece in pieces] + [(piece.end, -piece.gpus) for piece in pieces])
    in_use = most = 0
    for _, change in changes:
        in_use += change
        most = max(most, in_use)
    return most


def _jct(runs: Sequence[Run]) -> float:
    return fmean(run.completion for run in runs)


@pytest.mark.parametrize(
    ("name", "reference", "jct", "wait"),
    [("fifo", "fifo", 991_215.65, 944_350.80), ("first-fit", "fjf", 480_913.25, 434_048.39)],
)
def test_what_is_never_preempted_starts_at_exactly_the_reference_second(
    name: str, reference: str, jct: float, wait: float
) -> None:
    outcome = simulate_baseline(name, read_trace(TRACES / "muri" / "trace3.csv"), MURI)
    assert {run.id: (run.start, run.end) for run in outcome.runs} == _reference(reference)
    assert _jct(outcome.runs) == pytest.approx(jct, abs=0.005)
    assert fmean(run.wait for run in outcome.runs) == pytest.approx(wait, abs=0.005)


@pytest.mark.parametrize(("name", "jct"), [("srtf", 190_377.38), ("srsf", 183_965.98), ("tiresias", 340_306.28)])
def test_what_may_be_preempted_starts_and_ends_with_the_reference(name: str, jct: float) -> None:
    outcome = simulate_baseline(name, read_trace(TRACES / "muri" / "trace3.csv", form="muri-iterations"), MURI)
    reference = _reference(name)
    assert reference.keys() == {run.id for run in outcome.runs}
    for run in outcome.runs:
        assert (run.start, run.end) == pytest.approx(reference[run.id], rel=0, abs=1e-3)
    assert _jct(outcome.runs) == pytest.approx(jct, abs=0.005)


def test_equals_keep_the_order_of_the_trace() -> None:
    cluster = Cluster(nodes=1, gpus_per_node=1)
    for name in BASELINES:
        assert _spans(name, cluster, (0.0, 5.0, 1), (0.0, 5.0, 1), (0.0, 5.0, 1)) == [(0, 5), (5, 10), (10, 15)]


@pytest.mark.parametrize("name", BASELINES)
def test_what_can_never_fit_is_refused_and_holds_up_nobody(name: str) -> None:
    outcome = simulate_baseline(name, _trace((0.0, 5.0, 9), (0.0, 5.0, 8)), Cluster(nodes=2, gpus_per_node=4))
    assert outcome.refused == [(0, "needs 9 GPUs; the cluster has 8")]
    assert [(run.id, run.start, run.end) for run in outcome.runs] == [(1, 0, 5)]
    assert (outcome.policy, outcome.trace, outcome.gpus) == (name, "drawn up here", 8)


@pytest.mark.parametrize("name", BASELINES)
def test_a_job_without_gpus_waits_for_nobody(name: str) -> None:
    spans = _spans(name, Cluster(nodes=1, gpus_per_node=1), (0.0, 10.0, 1), (1.0, 10.0, 1), (2.0, 10.0, 0))
    assert spans == [(0, 10), (10, 20), (2, 12)]


@pytest.mark.parametrize("name", BASELINES)
def test_progress_is_told_about_a_hundred_times_and_ends_at_one(name: str) -> None:
    told: list[float] = []
    simulate_baseline(name, read_trace(TRACES / "muri" / "trace3.csv"), MURI, progress=told.append)
    assert 50 <= len(told) <= 101
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_an_unknown_policy_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(Invalid, match="no baseline named 'lottery'") as raised:
        simulate_baseline("lottery", _trace(), MURI)
    assert all(name in raised.value.remedy for name in BASELINES)


def test_jobs_that_are_not_in_order_are_refused() -> None:
    with pytest.raises(Invalid, match=r"job 1 of 2 s comes after job 0 of 5 s.* Sort the jobs"):
        simulate_baseline("fifo", _trace((5.0, 1.0, 1), (2.0, 1.0, 1)), MURI)


# Few distinct times, so that things happen at the same moment; some not whole.
times = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.25, 100.0, 1083.4, 3250.0, 5000.0])
clusters = st.builds(Cluster, nodes=st.integers(1, 4), gpus_per_node=st.integers(1, 4))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    jobs = draw(st.lists(st.tuples(times, times, st.integers(0, 10)), max_size=25))
    at = 0.0
    in_order = []
    for gap, duration, gpus in jobs:
        at += gap
        in_order.append((at, duration, gpus))
    return _trace(*in_order)


@settings(max_examples=examples(150))
@given(name=st.sampled_from(sorted(BASELINES)), trace=traces(), cluster=clusters)
def test_every_job_ends_or_is_refused_and_no_gpu_is_used_twice(name: str, trace: Trace, cluster: Cluster) -> None:
    outcome, pieces = _simulate(name, trace, cluster)
    jobs = {job.id: job for job in trace.jobs}
    assert sorted([run.id for run in outcome.runs] + [id for id, _ in outcome.refused]) == sorted(jobs)
    assert all(jobs[id].gpus > cluster.gpus for id, _ in outcome.refused)
    assert _most_in_use(pieces) <= cluster.gpus
    for run in outcome.runs:
        own = [piece for piece in pieces if piece.id == run.id]
        assert run.submitted == jobs[run.id].submitted <= run.start
        assert run.ran == pytest.approx(jobs[run.id].duration, abs=1e-6)
        assert run.completion >= run.wait + run.ran - 1e-6
        if run.gpus:
            assert (own[0].start, own[-1].end, len(own) - 1) == (run.start, run.end, run.preemptions)
            assert sum(piece.end - piece.start for piece in own) == pytest.approx(run.ran, abs=1e-6)
            assert all(before.end <= after.start for before, after in pairwise(own))
        if name not in PREEMPTIVE:
            assert run.preemptions == 0


@given(trace=traces(), cluster=clusters)
def test_fifo_starts_nobody_before_somebody_who_was_there_first(trace: Trace, cluster: Cluster) -> None:
    starts = [run.start for run in simulate_baseline("fifo", trace, cluster).runs if run.gpus]
    assert starts == sorted(starts)


@given(trace=traces(), nodes=st.integers(1, 6), name=st.sampled_from(["first-fit", *PREEMPTIVE]))
def test_on_single_gpus_nothing_is_idle_that_a_waiting_job_could_use(trace: Trace, nodes: int, name: str) -> None:
    outcome, pieces = _simulate(name, trace, Cluster(nodes=nodes, gpus_per_node=1))
    for moment in sorted({edge for piece in pieces for edge in (piece.start, piece.end)}):
        free = nodes - sum(piece.gpus for piece in pieces if piece.start <= moment < piece.end)
        running = {piece.id for piece in pieces if piece.start <= moment < piece.end}
        waiting = [run.gpus for run in outcome.runs if run.submitted <= moment < run.end and run.id not in running]
        assert all(gpus == 0 or gpus > free for gpus in waiting)


@given(cluster=clusters, steps=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_nodes_give_nothing_away_twice_and_always_the_first_that_fits(cluster: Cluster, steps: list[tuple[bool, int]]) -> None:
    nodes = Nodes(cluster)
    free = [cluster.gpus_per_node] * cluster.nodes
    held: list[Placement] = []
    for give, number in steps:
        if not give and held:
            placement = held.pop(number % len(held))
            nodes.give_back(placement)
            for node, gpus in placement:
                free[node] += gpus
            continue
        expected = _by_the_book(free, cluster.gpus_per_node, number)
        taken = nodes.take(number)
        assert taken == expected
        if taken is not None:
            held.append(taken)
            for node, gpus in taken:
                free[node] -= gpus
        assert nodes.free == sum(free)
        assert min(free) >= 0


def _by_the_book(free: list[int], per_node: int, gpus: int) -> Placement | None:
    """First fit, written down as the rule says it."""
    whole, rest = (0, gpus) if gpus <= per_node else divmod(gpus, per_node)
    idle = [node for node, here in enumerate(free) if here == per_node][:whole]
    others = [node for node, here in enumerate(free) if here >= rest and node not in idle]
    if len(idle) < whole or (rest and not others):
        return None
    return tuple([(node, per_node) for node in idle] + ([(others[0], rest)] if rest else []))
