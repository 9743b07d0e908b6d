"""When jobs will start, from what is known about how long others run."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from policy_labs import NOW, after, holding, lab, node, place, snapshots, waiting

from carrel.core.domain.expectation import ENOUGH, Correction, Corrections, Expected, LengthCorrection, wait_length
from carrel.core.domain.placement import Holding, Snapshot, Waiting
from carrel.core.policy.explain import explain
from carrel.core.policy.placer import Placer
from support.examples import examples

HOUR, DAY = 3600.0, 24 * 3600.0


def learned(known: dict[str, Expected]) -> object:
    """What is known by the jobs' names; what has run already does not change it here."""

    def expect(_owner: str, name: str, _limit: float, _elapsed: float) -> Expected | None:
        return known.get(name)

    return expect


def look(snapshot: Snapshot, known: dict[str, Expected]) -> dict[int, tuple[float | None, tuple[float, float] | None]]:
    """Seconds from now: the estimate and the range of every job that waits."""
    found = {}
    for hold in place(snapshot, NOW, expect=learned(known)).pending:  # type: ignore[arg-type]
        start = None if hold.estimated_start is None else hold.estimated_start - NOW
        between = hold.estimated_range
        found[hold.job_id] = (start, None if between is None else (between[0] - NOW, between[1] - NOW))
    return found


def named(job: Waiting | Holding, name: str) -> Waiting | Holding:
    return replace(job, name=name)


def test_it_waits_as_long_as_the_job_ahead_is_expected_to_run_on() -> None:
    busy = named(holding(100, "n1", "n1-0", left=10 * HOUR), "train")
    snapshot = lab([node("n1", "h200")], [waiting(1)], [busy])  # type: ignore[list-item]
    known = {"train": Expected(median=1200.0, low=600.0, high=2400.0, of=20)}
    (start, between) = look(snapshot, known)[1]
    assert abs(start - 1200) < 1
    low, high = between
    assert 300 < low < 600 < 2400 < high < 4800
    (hold,) = place(snapshot, NOW, expect=learned(known)).pending  # type: ignore[arg-type]
    assert hold.reason.message.endswith("; about 20 min (8 min to 47 min)")


def test_a_wide_range_is_told_in_days_and_kept_in_numbers() -> None:
    busy = named(holding(100, "n1", "n1-0", left=30 * DAY), "train")
    snapshot = lab([node("n1", "h200")], [waiting(1)], [busy])  # type: ignore[list-item]
    known = {"train": Expected(median=DAY, low=HOUR, high=12 * DAY, of=20)}
    outcome = Placer.of(snapshot).look(NOW)
    (hold,) = explain(outcome, learned(known), name_days=lambda *_: "by Monday").pending  # type: ignore[arg-type]
    assert hold.reason.message.endswith("; probably by Monday")
    assert hold.estimated_range is not None
    low, high = hold.estimated_range
    assert high - NOW > 3 * (low - NOW)


def test_a_long_range_is_told_in_numbers_once_enough_like_it_were_compared() -> None:
    busy = named(holding(100, "n1", "n1-0", left=30 * DAY), "train")
    snapshot = lab([node("n1", "h200")], [waiting(1)], [busy])  # type: ignore[list-item]
    known = {"train": Expected(median=DAY, low=20 * HOUR, high=28 * HOUR, of=20)}
    told = {}
    for starts in (ENOUGH - 1, ENOUGH):
        compared = LengthCorrection(narrow=Correction(), wide=Correction(), starts=starts)
        corrections = Corrections({wait_length(DAY): compared})
        outcome = Placer.of(snapshot).look(NOW)
        (hold,) = explain(outcome, learned(known), corrections, lambda *_: "by Monday").pending  # type: ignore[arg-type]
        told[starts] = hold.reason.message.rpartition("; ")[2]
    assert told[ENOUGH - 1] == "probably by Monday"
    assert told[ENOUGH].startswith("about 1 d ")


def test_where_nothing_is_known_it_is_the_walltime_and_there_is_no_range() -> None:
    snapshot = lab([node("n1", "h200")], [waiting(1)], [holding(100, "n1", "n1-0", left=10 * HOUR)])
    assert look(snapshot, {}) == {1: (10 * HOUR, None)}
    (hold,) = place(snapshot, NOW, expect=learned({})).pending  # type: ignore[arg-type]
    assert hold.reason.message.endswith("; in 10 h at the latest")


def test_nothing_is_expected_of_an_open_session() -> None:
    """Its user ends it: however short other jobs were, it is there until its walltime as far as anybody knows."""
    session = replace(holding(100, "n1", "n1-0", left=10 * HOUR), name="lab", open_ended=True)
    snapshot = lab([node("n1", "h200")], [waiting(1)], [session])
    known = {"lab": Expected(median=1200.0, low=600.0, high=2400.0, of=20)}
    assert look(snapshot, known) == {1: (10 * HOUR, None)}


def test_a_small_job_that_can_go_ahead_is_told_so() -> None:
    """The list of all that wait in order would say hours; backfill is foreseen."""
    pending = [
        named(holding(100, "n1", "n1-0", left=10 * HOUR), "long"),
        named(holding(101, "n1", "n1-1", left=HOUR), "short"),
    ]
    jobs = [waiting(1, 2, ago=90, time=7200), waiting(2, 1, ago=50, time=600)]
    snapshot = lab([node("n1", "h200", "h200")], jobs, pending)  # type: ignore[arg-type]
    known = {
        "long": Expected(median=9 * HOUR, low=8.9 * HOUR, high=9.1 * HOUR, of=20),
        "short": Expected(median=600.0, low=590.0, high=610.0, of=20),
    }
    found = look(snapshot, known)
    large, small = found[1][0], found[2][0]
    assert abs(large - 9 * HOUR) < 60
    assert abs(small - 600) < 60


def test_jobs_never_run_for_longer_than_they_may() -> None:
    busy = named(holding(100, "n1", "n1-0", left=500.0), "train")
    snapshot = lab([node("n1", "h200")], [waiting(1)], [busy])  # type: ignore[list-item]
    start, between = look(snapshot, {"train": Expected(median=450.0, low=300.0, high=90_000.0, of=20)})[1]
    assert start <= 500
    assert between[1] == 500


def line_of(count: int, names: str) -> Snapshot:
    """A job that runs, and a line of others behind it on one GPU; `names` is one letter or "unique"."""
    jobs = [named(waiting(number, ago=100.0 - number, time=100_000), names) for number in range(1, count + 1)]
    if names == "unique":
        jobs = [named(job, f"job-{job.id}") for job in jobs]
    busy = named(holding(100, "n1", "n1-0", left=100_000.0), names)
    return lab([node("n1", "h200")], jobs, [busy])  # type: ignore[arg-type, list-item]


#: Nine in ten run for a minute, and one for 1,000 minutes: the mean is a hundred times the median.
SKEWED = tuple([60.0] * 18 + [60_000.0] * 2)


def test_a_line_of_jobs_takes_their_number_times_their_mean_and_not_times_their_median() -> None:
    alone = Expected(median=60.0, low=60.0, high=60_000.0, of=200, ladder=SKEWED, common=0.02)
    found = look(line_of(40, "train"), {"train": alone})
    start, between = found[40]
    mean = 40 * sum(SKEWED) / len(SKEWED)
    assert 0.5 * mean < start < 1.5 * mean
    assert between[0] > 10 * 40 * 60


def test_what_jobs_have_in_common_does_not_even_out() -> None:
    def width(common: float) -> float:
        known = Expected(median=600.0, low=200.0, high=1800.0, of=50, common=common)
        between = look(line_of(30, "train"), {"train": known})[30][1]
        return between[1] / between[0]

    assert width(0.0) < 2.2 < 4 < width(0.95)


def test_what_is_common_to_all_does_not_even_out_between_names() -> None:
    def width(**parts: float) -> float:
        jobs = line_of(30, "unique")
        known = {job.name: Expected(median=600.0, low=200.0, high=1800.0, of=50, kin=job.name, **parts) for job in jobs.waiting}
        between = look(jobs, known | {"unique": known["job-1"]})[30][1]
        return between[1] / between[0]

    assert width(common=0.9) < 2.2 < 4 < width(common_to_all=0.9)


@settings(max_examples=examples(40), deadline=None)
@given(snapshots())
def test_ranges_hold_their_estimate_and_decisions_do_not_depend_on_them(snapshot: Snapshot) -> None:
    expect = learned({"": Expected(median=200.0, low=100.0, high=900.0, of=9)})
    plain, informed = place(snapshot, NOW), place(snapshot, NOW, expect=expect)  # type: ignore[arg-type]
    assert informed.starts == plain.starts
    assert [hold.job_id for hold in informed.pending] == [hold.job_id for hold in plain.pending]
    assert after(snapshot, informed, NOW) == after(snapshot, plain, NOW)
    for hold, other in zip(informed.pending, plain.pending, strict=True):
        assert hold.reason.code == other.reason.code
        if hold.estimated_range is not None:
            low, high = hold.estimated_range
            assert NOW <= low <= hold.estimated_start <= high
