from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Trace, TraceJob
from foreign_traces import read_trace
from generator import FITTED, FittedJobs, fit_jobs, generate_jobs
from generator.arrivals import HOUR, HOURS
from generator.people import People, fit_people
from generator.quantiles import measure_quantiles
from generator.walltimes import RUNGS
from support.examples import examples

pytestmark = pytest.mark.slow

MURI = Path(__file__).parents[1] / "data" / "traces" / "muri" / "trace3.csv"
FEW = settings(max_examples=examples(40), deadline=None)
DAY = 24 * HOUR


def job(number: int, submitted: float = 0.0, duration: float = 60.0, gpus: int = 1, **more: object) -> TraceJob:
    return replace(TraceJob(id=number, submitted=submitted, duration=duration, gpus=gpus), **more)  # type: ignore[arg-type]


def trace(*jobs: TraceJob, cluster: Cluster | None = None) -> Trace:
    return Trace(name="hand-made", jobs=jobs, cluster=cluster)


def load_of(made: Trace, gpus: int) -> float:
    return sum(one.gpus * one.duration for one in made.jobs) / gpus / (made.jobs[-1].submitted - made.jobs[0].submitted)


# What is shipped


def test_what_is_shipped_was_measured_from_the_trace_of_muri() -> None:
    assert fit_jobs(read_trace(MURI)) == FITTED


def test_the_same_arguments_give_the_same_jobs() -> None:
    assert generate_jobs(7, jobs=500, load=0.9) == generate_jobs(7, jobs=500, load=0.9)
    assert repr(generate_jobs(7, jobs=500)).encode() == repr(generate_jobs(7, jobs=500)).encode()
    assert generate_jobs(7, jobs=500) != generate_jobs(8, jobs=500)


@pytest.mark.parametrize("load", [0.3, 0.9, 1.5])
@pytest.mark.parametrize("jobs", [20, 2_000])
def test_the_load_is_reached(load: float, jobs: int) -> None:
    assert load_of(generate_jobs(1, jobs=jobs, load=load), 64) == pytest.approx(load, rel=0.02)
    assert load_of(generate_jobs(1, jobs=jobs, gpus=256, load=load), 256) == pytest.approx(load, rel=0.02)


@pytest.fixture(scope="module")
def many() -> Trace:
    return generate_jobs(3, jobs=60_000)


def test_generated_jobs_have_the_sizes_that_were_measured(many: Trace) -> None:
    for found, shipped in zip(fit_jobs(many).sizes, FITTED.sizes, strict=True):
        assert found.gpus == shipped.gpus
        assert found.share == pytest.approx(shipped.share, abs=0.015)


@pytest.mark.parametrize(("novelty", "tolerance"), [(1.0, 0.02), (FITTED.people.novelty, 0.06)])
def test_generated_jobs_have_the_run_times_that_were_measured(novelty: float, tolerance: float) -> None:
    """Of sizes with enough jobs, up to the factor by which jobs of one name differ: where many jobs of the trace ran as long,
    those that are generated do not quite. With repeats fewer names are drawn, so that chance has a greater part.
    """
    made = generate_jobs(3, jobs=60_000, like=replace(FITTED, people=People(novelty=novelty)))
    for size in FITTED.sizes:
        if size.share < 0.1:
            continue
        durations = [one.duration for one in made.jobs if one.gpus == size.gpus]
        found = measure_quantiles(durations)
        for probability in (0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95):
            least = size.durations.at(max(probability - tolerance, 0.0)) * exp(-FITTED.spread)
            most = size.durations.at(min(probability + tolerance, 1.0)) * exp(FITTED.spread)
            assert least <= found.at(probability) <= most, (size.gpus, probability)
        assert size.durations.values[0] <= min(durations)
        assert max(durations) <= size.durations.values[-1]


def test_generated_jobs_come_when_they_came(many: Trace) -> None:
    """Eight hours together: of one hour, chance has the greater part."""
    found, shipped = fit_jobs(many).arrivals.week, FITTED.arrivals.week
    for begin in range(0, HOURS, 8):
        assert fmean(found[begin : begin + 8]) == pytest.approx(fmean(shipped[begin : begin + 8]), rel=0.25, abs=0.1)


def test_jobs_of_one_user_and_name_are_alike(many: Trace) -> None:
    names: dict[tuple[str, str], list[TraceJob]] = {}
    for one in many.jobs:
        names.setdefault((one.user, one.name), []).append(one)
    assert all(len({one.gpus for one in alike}) == 1 for alike in names.values())
    spreads = [pstdev(log(one.duration) for one in alike) for alike in names.values() if len(alike) >= 30]
    assert median(spreads) == pytest.approx(FITTED.spread, abs=0.05)
    repeated = sum(len(alike) for alike in names.values() if len(alike) >= 5) / len(many.jobs)
    assert 0.6 < repeated < 0.75


def test_generated_users_are_as_active_as_was_measured(many: Trace) -> None:
    found = fit_people(many.jobs)
    assert found.users == FITTED.people.users
    assert found.activity == pytest.approx(FITTED.people.activity, abs=0.03)
    assert found.novelty == pytest.approx(FITTED.people.novelty, abs=0.02)


def test_walltimes_are_what_people_write_and_long_enough(many: Trace) -> None:
    for one in many.jobs:
        assert one.time in RUNGS or one.time % RUNGS[-1] == 0
        assert one.time >= one.duration
    # Where neither the shortest nor the longest walltime has a say, half of the jobs use half of theirs or more, before rounding.
    factors = [(one.time or 0) / one.duration for one in many.jobs if HOUR < one.duration < 4 * HOUR]
    assert 1.8 < median(factors) < 3.2


# Sizes and clusters


def test_jobs_that_no_cluster_of_this_size_can_run_are_left_out_and_it_is_said() -> None:
    made = generate_jobs(1, jobs=300, gpus=8)
    assert max(one.gpus for one in made.jobs) == 8
    assert made.cluster == Cluster(nodes=1, gpus_per_node=8)
    assert made.notes[-1] == "Jobs of more than 8 GPUs, 11.2% of trace3.csv, are left out."
    assert generate_jobs(1, jobs=1, gpus=128).cluster == Cluster(nodes=16, gpus_per_node=8)
    assert generate_jobs(1, jobs=1, gpus=12).cluster == Cluster(nodes=1, gpus_per_node=12)


def test_impossible_wishes_are_refused() -> None:
    wide = fit_jobs(trace(job(1, gpus=4), job(2, 10, gpus=4)))
    for message, wish in (
        ("0 jobs are to be generated", {"jobs": 0}),
        ("There are 0 GPUs", {"jobs": 1, "gpus": 0}),
        ("All jobs of hand-made need more than 2 GPUs", {"jobs": 1, "gpus": 2, "like": wide}),
        ("The load is 0", {"jobs": 2, "load": 0}),
        ("The load is nan", {"jobs": 2, "load": float("nan")}),
        ("does not say where it was recorded", {"jobs": 2, "load": 1, "like": wide}),
        ("1 jobs of .* make no load", {"jobs": 1, "load": 1}),
        ("2 jobs of 0 GPU-seconds make no load", {"jobs": 2, "load": 1, "gpus": 1, "like": _idle()}),
    ):
        with pytest.raises(Invalid, match=message):
            generate_jobs(0, **wish)


def _idle() -> FittedJobs:
    return fit_jobs(trace(job(1, gpus=0), job(2, 10, gpus=0)))


# Any trace


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    gaps = draw(st.lists(st.floats(0, 5 * DAY), min_size=1, max_size=40))
    at, jobs = 0.0, []
    for number, gap in enumerate([*gaps, 0.0]):
        at += gap
        jobs.append(
            job(
                number,
                at,
                duration=draw(st.floats(0, 20 * DAY)),
                gpus=draw(st.sampled_from([0, 1, 2, 8, 32])),
                user=draw(st.sampled_from(["a", "b", "c"])),
                name=draw(st.sampled_from(["x", "y"])),
                time=draw(st.sampled_from([None, 60, 3600, 100_000])),
            )
        )
    return trace(*jobs, cluster=draw(st.sampled_from([None, Cluster(nodes=4, gpus_per_node=8)])))


@FEW
@given(traces(), st.integers(0, 2**32), st.integers(2, 60), st.floats(0.05, 3))
def test_whatever_was_measured_can_be_generated_and_measured_again(like: Trace, seed: int, jobs: int, load: float) -> None:
    fitted = fit_jobs(like)
    made = generate_jobs(seed, jobs=jobs, like=fitted)
    assert [one.id for one in made.jobs] == list(range(jobs))
    assert made.jobs[0].submitted == 0
    assert all(before.submitted <= after.submitted for before, after in pairwise(made.jobs))
    limits = {size.gpus: size.durations.values for size in fitted.sizes}
    for one in made.jobs:
        assert limits[one.gpus][0] <= one.duration <= limits[one.gpus][-1]
        assert one.time >= one.duration
    assert len(Counter(one.user for one in made.jobs)) <= fitted.people.users
    fit_jobs(made)
    if sum(one.gpus * one.duration for one in made.jobs) > HOUR:
        assert load_of(generate_jobs(seed, jobs=jobs, like=fitted, gpus=32, load=load), 32) == pytest.approx(load, rel=0.02)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(Invalid, match="hand-made has 1 jobs"):
        fit_jobs(trace(job(1)))
    with pytest.raises(Invalid, match="job 2 of 5 s comes after job 1 of 10 s"):
        fit_jobs(trace(job(1, 10), job(2, 5)))
