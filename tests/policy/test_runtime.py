"""Run times learned from history: by hand-computed examples, and by what must hold for any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import exp, inf, log, nan
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.core.domain.errors import Invalid
from carrel.core.policy.runtime import NAME_SPEAKS, NEWEST, NEWEST_SHARES, OWNER_SPEAKS, Expected, RunTimes
from support.examples import examples

FAST = settings(max_examples=examples(60), deadline=None)
HOUR = 3600.0
DAY = 24 * HOUR


class Ended(NamedTuple):
    owner: str
    name: str
    seconds: float
    limit: float


def learned(*jobs: Ended, keys: int = 1000) -> RunTimes:
    times = RunTimes(keys=keys)
    for job in jobs:
        times.observe(*job)
    return times


def of_name(*seconds: float, limit: float = DAY) -> RunTimes:
    return learned(*(Ended("ada", "train", one, limit) for one in seconds))


def expected(times: RunTimes, limit: float = DAY, owner: str = "ada", name: str = "train") -> Expected:
    found = times.expect(owner, name, limit)
    assert found is not None
    return found


def told(found: Expected | None) -> tuple[float, float, float, int] | None:
    return None if found is None else (found.low, found.median, found.high, found.of)


ENDED = st.builds(
    Ended,
    st.sampled_from(["ada", "bob", "cyd"]),
    st.sampled_from(["train", "eval", "sweep"]),
    st.floats(0, 10 * DAY),
    st.sampled_from([60.0, HOUR, DAY, 7 * DAY]),
)
HISTORIES = st.lists(ENDED, max_size=120)


# Of a name


#: Jobs of one name, the walltime that is asked for now, and what is expected: low, median, high, and of how many jobs.
RANGES: dict[str, tuple[RunTimes, float, tuple[float, float, float, int]]] = {
    "from 9 jobs on it ends at jobs that ran": (of_name(*(100.0 * n for n in range(1, 10))), DAY, (100, 500, 900, 9)),
    # Ranks 1.4, 7 and 12.6 of 13 jobs that double each time.
    "between jobs the logarithm is a straight line": (of_name(*(2.0**n for n in range(1, 14))), DAY, (2**1.4, 2**7, 2**12.6, 13)),
    # Ranks 0.4 and 3.6 of 3: 0.6 of a rank beyond what was seen, and a rank is twice half the spread.
    "few jobs get more room than they took": (of_name(100, 200, 400), DAY, (100 / 4**0.6, 200, 400 * 4**0.6, 3)),
    "the newest count": (of_name(*[1000.0] * 100, *[10.0] * NEWEST), DAY, (10, 10, 10, NEWEST)),
    "it is cut to the limit": (of_name(*(HOUR * n for n in range(1, 10))), 2.5 * HOUR, (HOUR, 2.5 * HOUR, 2.5 * HOUR, 9)),
    "who was cut off ran as long as it might": (of_name(*[HOUR] * 9, limit=HOUR), HOUR, (HOUR, HOUR, HOUR, 9)),
    "and at least as long": (of_name(*[HOUR] * 9, limit=HOUR), 8 * HOUR, (HOUR, 8 * HOUR, 8 * HOUR, 9)),
    "who was cut off moves the ranks that it has": (
        learned(*(Ended("ada", "train", 100.0 * n, DAY) for n in range(1, 8)), *[Ended("ada", "train", 50.0, 50.0)] * 2),
        DAY, (50, 500, DAY, 9),
    ),
    "0 seconds are one": (of_name(*[0.0] * 9), DAY, (1, 1, 1, 9)),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_what_is_expected_of_a_name(name: str) -> None:
    times, limit, range_ = RANGES[name]
    assert told(expected(times, limit=limit)) == pytest.approx(range_)


@pytest.mark.parametrize(("seconds", "median"), [(lambda limit: limit / 2, 2 * HOUR), (lambda _limit: 30.0, 30.0)])
def test_a_name_runs_for_a_share_of_its_walltime_or_for_as_long_whatever_that_is(
    seconds: Callable[[float], float], median: float
) -> None:
    times = learned(*(Ended("ada", "train", seconds(limit), limit) for limit in (60.0, HOUR, DAY) * 3))
    assert expected(times, limit=4 * HOUR).median == pytest.approx(median)


def test_few_jobs_that_ran_equally_long_are_not_believed_to_the_second() -> None:
    found = expected(of_name(100, 100, 100))
    assert found.low < 80
    assert found.median == pytest.approx(100)
    assert found.high > 120


def test_more_jobs_that_ran_equally_long_narrow_the_range() -> None:
    widths = []
    for count in range(NAME_SPEAKS, 20):
        found = expected(of_name(*[100.0] * count))
        widths.append(found.high - found.low)
    assert all(after < before for before, after in pairwise(widths[:7]))
    assert widths[6:] == pytest.approx([0.0] * len(widths[6:]))


def test_jobs_of_others_and_of_other_names_change_nothing() -> None:
    seconds = (100.0, 150.0, 120.0, 90.0)
    others = [Ended("bob", "train", 9000.0, DAY)] * 20 + [Ended("ada", "eval", 5.0, DAY)] * 20
    mine = [Ended("ada", "train", one, DAY) for one in seconds]
    assert told(expected(learned(*others[:15], *mine, *others[15:]))) == told(expected(of_name(*seconds)))


# Of an owner, and of everybody


def test_a_new_name_runs_for_the_share_of_its_walltime_that_its_owners_other_jobs_did() -> None:
    jobs = [Ended("ada", f"run-{number}", 360.0 * number, HOUR) for number in range(1, 10)]
    crowd = [Ended("bob", f"run-{number}", 1.0, HOUR) for number in range(50)]
    times = learned(*jobs, Ended("ada", "run-10", 1.8 * HOUR, 4 * HOUR), *crowd)
    found = expected(times, limit=10 * HOUR, name="new")
    assert found.of == OWNER_SPEAKS
    assert found.low == pytest.approx(HOUR * exp(0.1 * log(2)))  # rank 1.1 of 10 %, 20 %, …
    assert found.median == pytest.approx(10 * HOUR * (0.45 * 0.5) ** 0.5)
    assert 8 * HOUR <= found.high <= 9 * HOUR


def test_an_owner_of_whom_little_is_known_is_taken_for_one_of_the_others() -> None:
    crowd = [Ended("bob", f"run-{number}", HOUR / 2, HOUR) for number in range(OWNER_SPEAKS)]
    few = [Ended("ada", f"run-{number}", 60.0, HOUR) for number in range(OWNER_SPEAKS - 1)]
    assert expected(learned(*crowd), limit=2 * HOUR).median == pytest.approx(HOUR)
    assert expected(learned(*crowd, *few), limit=2 * HOUR).of == len(crowd) + len(few)


def test_of_everybody_the_newest_count() -> None:
    times = RunTimes()
    for number in range(NEWEST_SHARES + 100):
        times.observe("bob", f"run-{number}", HOUR if number < 100 else HOUR / 2, 2 * HOUR)
    found = expected(times, limit=4 * HOUR)
    assert found.median == pytest.approx(HOUR)
    assert found.of == NEWEST_SHARES


def test_nothing_is_said_before_a_spread_can_be_measured() -> None:
    times = RunTimes()
    for number in range(NAME_SPEAKS):
        assert times.expect("ada", "train", DAY) is None
        times.observe("bob", f"run-{number}", 60, HOUR)
    assert times.expect("ada", "train", DAY) is not None


# What jobs have in common


def in_turns(*names: str, rounds: int, seconds: list[float]) -> RunTimes:
    """Every name ends once in each round; with one list for all, all jobs of a round are alike."""
    return learned(*(Ended(name, name, second, DAY) for second in seconds[:rounds] for name in names))


def test_jobs_that_come_in_batches_have_more_in_common_than_jobs_in_any_order() -> None:
    long_ones, short_ones = [7200.0] * 32, [60.0] * 32
    batches = expected(of_name(*long_ones, *short_ones)).common
    mixed = [*long_ones, *short_ones]
    Random(1).shuffle(mixed)
    assert batches > 0.7
    assert expected(of_name(*mixed)).common < 0.4


def test_the_fewer_jobs_are_known_the_more_is_common() -> None:
    random = Random(2)
    shares = [expected(of_name(*(exp(random.gauss(8, 1)) for _ in range(count)))).common for count in (3, 200)]
    assert shares[0] > 0.3
    assert shares[1] < 0.2


def test_what_changes_for_everybody_at_once_is_common_to_all() -> None:
    seasons = [60.0] * 10 + [7200.0] * 10
    together = expected(in_turns("ada", "bob", "cyd", rounds=20, seconds=seasons), name="ada", owner="ada")
    random = Random(3)
    apart = learned(*(Ended(who, who, exp(random.gauss(8, 1)), DAY) for _ in range(60) for who in ("ada", "bob", "cyd")))
    assert together.common_to_all > 0.5
    assert expected(apart, owner="ada", name="ada").common_to_all < 0.15


@FAST
@given(HISTORIES, st.floats(0.001, 30 * DAY))
def test_what_is_common_is_a_share_and_the_ladder_rises(history: list[Ended], limit: float) -> None:
    found = learned(*history).expect("ada", "train", limit)
    if found is not None:
        assert found.common >= 0
        assert found.common_to_all >= 0
        assert found.common + found.common_to_all <= 1 + 1e-9
        assert list(found.ladder) == sorted(found.ladder)
        assert 0 <= found.ladder[0] <= found.ladder[-1] <= limit


# How long it still runs


def test_what_remains_is_learned_from_jobs_that_ran_for_longer() -> None:
    times = of_name(*[10.0] * 30, *(1000.0 + 100 * number for number in range(1, 10)))
    found = times.remaining("ada", "train", DAY, 1000)
    assert (found.low, found.median, found.high, found.of) == pytest.approx((100, 500, 900, 9))


def test_who_ran_for_longer_than_all_of_its_name_is_looked_up_among_the_owners_other_jobs() -> None:
    jobs = [Ended("ada", f"run-{number}", HOUR * (6 + number), 20 * HOUR) for number in range(OWNER_SPEAKS)]
    times = learned(*jobs, *[Ended("ada", "train", 60.0, 20 * HOUR)] * 20)
    found = times.remaining("ada", "train", 20 * HOUR, 5 * HOUR)
    assert found.of == OWNER_SPEAKS
    assert found.median == pytest.approx((10 * 11) ** 0.5 * HOUR - 5 * HOUR)


def test_what_remains_may_be_unknown_or_nothing() -> None:
    times = of_name(*[60.0] * 20)
    assert times.remaining("ada", "train", DAY, HOUR) is None
    assert times.remaining("ada", "train", DAY, DAY) == Expected(median=0, low=0, high=0, of=0)


# What must hold for any history


@FAST
@given(HISTORIES, st.floats(0.001, 30 * DAY), st.floats(0, 40 * DAY))
def test_ranges_are_in_order_and_within_the_limit(history: list[Ended], limit: float, elapsed: float) -> None:
    times = learned(*history)
    for found, most in (
        (times.expect("ada", "train", limit), limit),
        (times.remaining("ada", "train", limit, elapsed), max(limit - elapsed, 0.0)),
    ):
        if found is not None:
            assert 0 <= found.low <= found.median <= found.high <= most
            assert found.of <= len(history)


@FAST
@given(st.lists(ENDED, max_size=NEWEST), st.randoms(use_true_random=False))
def test_of_a_name_the_order_of_observations_does_not_matter(history: list[Ended], random: Random) -> None:
    mixed = list(history)
    random.shuffle(mixed)
    one, other = learned(*history), learned(*mixed)
    for who, count in Counter(job[:2] for job in history).items():
        if count >= NAME_SPEAKS:
            assert told(one.expect(*who, DAY)) == told(other.expect(*who, DAY))


@FAST
@given(st.lists(st.floats(1, 1e5), min_size=NAME_SPEAKS, max_size=NEWEST), st.floats(0, 1e5), st.floats(0, 1e5))
def test_who_has_run_for_longer_ends_no_sooner(seconds: list[float], one: float, other: float) -> None:
    times = of_name(*seconds, limit=1e9)
    early, late = sorted((one, other))
    if sum(second > late for second in seconds) >= NAME_SPEAKS:
        before, after = (times.remaining("ada", "train", 1e9, elapsed) for elapsed in (early, late))
        assert after.median + late >= before.median + early - 1e-6


@FAST
@given(st.lists(st.floats(1, 1e5), min_size=NAME_SPEAKS, max_size=NEWEST), st.floats(0.5, 20))
def test_a_machine_that_is_slower_makes_everything_longer(seconds: list[float], factor: float) -> None:
    one = expected(of_name(*seconds, limit=1e15), limit=1e15)
    slower = expected(of_name(*(max(second, 1.0) * factor for second in seconds), limit=1e15), limit=1e15)
    if min(seconds) * factor >= 1:
        assert (slower.low, slower.median, slower.high) == pytest.approx(
            (one.low * factor, one.median * factor, one.high * factor)
        )


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8, 9, 12, 20, 40, 64])
def test_ranges_hold_80_percent_of_a_log_normal_distribution(count: int) -> None:
    random, held, rounds = Random(count), 0, 3000
    for _ in range(rounds):
        found = expected(of_name(*(exp(random.gauss(8, 0.7)) for _ in range(count)), limit=1e9), limit=1e9)
        held += found.low <= exp(random.gauss(8, 0.7)) <= found.high
    assert held / rounds == pytest.approx(0.8, abs=0.03)


# Memory, and what is refused


def test_the_name_goes_that_was_not_observed_for_the_longest_time() -> None:
    times = RunTimes(keys=2)
    for name in ("old", "train", "old", "new"):
        for _ in range(NAME_SPEAKS):
            times.observe("ada", name, 100, DAY)
    assert expected(times, name="old").of == 2 * NAME_SPEAKS
    assert expected(times, name="new").of == NAME_SPEAKS
    assert expected(times, name="train").of == 3 * NAME_SPEAKS  # Everybody's: the first jobs of three names.


@pytest.mark.parametrize("limit", [0.0, -1.0, nan, inf])
def test_a_limit_is_above_0(limit: float) -> None:
    with pytest.raises(Invalid, match="The walltime is"):
        RunTimes().expect("ada", "train", limit)
    with pytest.raises(Invalid, match="The walltime is"):
        RunTimes().observe("ada", "train", 1.0, limit)


@pytest.mark.parametrize("seconds", [-1.0, nan, inf])
def test_a_job_runs_for_0_seconds_or_more(seconds: float) -> None:
    with pytest.raises(Invalid, match="A job ran for"):
        RunTimes().observe("ada", "train", seconds, DAY)
    with pytest.raises(Invalid, match="A job ran for"):
        RunTimes().remaining("ada", "train", DAY, seconds)
