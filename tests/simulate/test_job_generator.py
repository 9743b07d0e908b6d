from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from random import Random
from statistics import fmean, median, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import Cluster, Trace, TraceJob
from foreign_traces import read_trace
from generator import FITTED, FittedJobs, fit_jobs, generate_jobs
from generator.arrivals import HOUR, HOURS, WEEK, Arrivals, fit_arrivals
from generator.people import People, fit_people
from generator.quantiles import PROBABILITIES, Quantiles, measure_quantiles
from generator.walltimes import EVEN, RUNGS, asked, fit_factors, rung
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


def constant(value: float) -> Quantiles:
    return Quantiles((value,) * len(PROBABILITIES))


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


def test_generated_jobs_come_as_densely_as_they_did(many: Trace) -> None:
    found = fit_jobs(many).arrivals.gaps
    for probability in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        assert log(found.at(probability)) == pytest.approx(log(FITTED.arrivals.gaps.at(probability)), abs=0.15)
    recorded = read_trace(MURI).jobs
    pace = recorded[-1].submitted / (len(recorded) - 1)
    assert many.jobs[-1].submitted / (len(many.jobs) - 1) == pytest.approx(pace, rel=0.08)


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
        assert one.time is not None
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


# Arrivals


def test_a_short_trace_has_one_rate_and_a_long_one_hours_of_the_week() -> None:
    assert fit_arrivals([0, 60, WEEK]).week == ()
    # Three weeks, one job in each of the same two hours.
    times = [week * WEEK + hour * HOUR for week in range(4) for hour in (0, 5)]
    found = fit_arrivals(times).week
    assert len(found) == HOURS
    busy, quiet = found[0], found[1]
    assert found[5] == pytest.approx(busy, rel=0.1)
    assert busy > 20 * quiet
    assert fmean(found) == pytest.approx(1, abs=1e-3)


def test_gaps_are_measured_on_the_clock_of_the_week_and_drawn_from_it() -> None:
    week = (3.0,) * 84 + (0.5,) * 84
    arrivals = Arrivals(gaps=constant(HOUR), week=week)
    times = arrivals.draw(Random(1), 84 * 3 + 42 + 1)
    assert times[0] == 0
    assert [after - before for before, after in pairwise(times[:200])] == pytest.approx([HOUR / 3] * 199)
    assert [after - before for before, after in pairwise(times[260:])] == pytest.approx([HOUR * 2] * 34)
    assert times[-1] == pytest.approx(WEEK)


def test_jobs_that_all_came_at_once_are_spread_evenly_where_a_load_wants_time() -> None:
    at_once = fit_jobs(trace(*(job(number) for number in range(5))))
    assert {one.submitted for one in generate_jobs(1, jobs=5, like=at_once).jobs} == {0.0}
    made = generate_jobs(1, jobs=5, like=at_once, gpus=1, load=1.0)
    gaps = [after.submitted - before.submitted for before, after in pairwise(made.jobs)]
    assert gaps == pytest.approx([gaps[0]] * 4, abs=0.01)


@pytest.mark.parametrize("week", [(1.0,), (0.0,) * HOURS])
def test_a_week_has_168_hours_with_rates(week: Sequence[float]) -> None:
    with pytest.raises(Invalid, match=r"There are rates of|not above 0"):
        Arrivals(gaps=constant(1), week=week)


# People


@pytest.mark.parametrize("activity", [0.0, 0.8, 1.6])
def test_the_exponent_of_activity_is_found_again(activity: float) -> None:
    like = replace(FITTED, people=People(users=60, activity=activity, novelty=0.5))
    found = fit_people(generate_jobs(2, jobs=20_000, like=like).jobs)
    assert found.users == 60
    assert found.activity == pytest.approx(activity, abs=0.06)
    assert found.novelty == pytest.approx(0.5, abs=0.02)


def test_a_trace_that_names_nobody_gets_the_defaults() -> None:
    assert fit_people([job(1), job(2, name="other")]) == People()
    assert fit_people([job(1, user="a"), job(2, user="b"), job(3, user="b")]).novelty == People().novelty


def test_people_are_checked() -> None:
    for message, wrong in (("0 users", {"users": 0}), ("exponent", {"activity": -1.0}), ("new name", {"novelty": 0.0})):
        with pytest.raises(Invalid, match=message):
            People(**wrong)


# Walltimes


def test_walltimes_are_rounded_up_to_what_people_write() -> None:
    assert [rung(hours * HOUR) for hours in (0, 0.5, 0.51, 5, 24, 25, 7 * 24, 7 * 24 + 1, 15 * 24)] == [
        hours * 3600 for hours in (0.5, 0.5, 1, 8, 24, 48, 7 * 24, 14 * 24, 21 * 24)
    ]
    assert asked(duration=5 * HOUR, wish=HOUR) == 8 * 3600
    assert asked(duration=60, wish=100 * DAY) == 7 * 86400
    assert asked(duration=10 * DAY, wish=0) == 14 * 86400


def test_factors_are_measured_between_the_rungs_or_taken_as_even() -> None:
    assert fit_factors([job(1), job(2)]) == EVEN
    found = fit_factors([job(1, duration=HOUR, time=4 * 3600), job(2, duration=0, time=60)])
    assert found.at(0.5) == pytest.approx(8**0.5, abs=0.001)
    # Cut off at its walltime, or let run beyond: what was wished for is what it took.
    assert fit_factors([job(1, duration=7200, time=7200)]).at(0.5) == 1
    assert fit_factors([job(1, duration=8000, time=7200)]).at(0.5) == 1


def test_factors_are_about_found_again() -> None:
    found = fit_jobs(generate_jobs(5, jobs=20_000)).factors
    for probability in (0.2, 0.5, 0.8):
        assert log(found.at(probability)) == pytest.approx(log(EVEN.at(probability)), abs=0.35)


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
        assert one.time is not None
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
