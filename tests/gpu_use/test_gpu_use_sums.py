"""Sums of attempts against an oracle that looks at every second by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.core.domain.job import JobState
from carrel.core.gpu_use import AttemptFacts, End, Grouping, LentFacts, Range, Use, UseSums
from carrel.core.gpu_use.groups import WEEK, monday_before

#: Seconds around which everything here happens: a week ends in the middle.
MONDAY = 1_700_438_400
FIRST, LAST = MONDAY - 40, MONDAY + 40
ENDED = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED"]


@dataclass
class Job:
    """A job with its attempts; all times are whole seconds."""

    facts: list[AttemptFacts]

    @property
    def any(self) -> AttemptFacts:
        return self.facts[0]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Attempts follow one another; the last may go on, and so may the wait after it."""
    count = draw(st.integers(0, 3))
    moments = sorted(draw(st.lists(st.integers(FIRST, LAST), min_size=3 * count + 2, max_size=3 * count + 2)))
    running = draw(st.booleans()) and count > 0
    ended = None if running or draw(st.booleans()) else float(moments[-1])
    cluster = draw(st.booleans())
    common = {
        "owner": draw(st.sampled_from(["ada", "bob"])),
        "account": draw(st.sampled_from(["physics", "biology"])),
        "qos": draw(st.sampled_from(["normal", "batch"])),
        "kind": draw(st.sampled_from(["task", "session"])),
        "gpus": draw(st.integers(0, 3)),
        "submitted_at": float(moments[0]),
        "job_ended_at": ended,
        "last": count,
        "project": draw(st.sampled_from(["one", "two"])),
    }
    found = []
    for number in range(1, count + 1):
        leased, started, over = (float(one) for one in moments[3 * number - 2 : 3 * number + 1])
        goes_on = running and number == count
        began, busy = draw(st.booleans()), draw(st.sampled_from([None, 0.0, 50.0]))
        until = LAST + 3.0 if goes_on else over
        placed = until - (leased if not cluster else started if began else until)
        found.append(
            AttemptFacts(
                **common,
                number=number,
                first=number == 1,
                node="slurm:gpu" if cluster else "bench",
                leased_at=leased,
                started_at=started if began else None,
                ended_at=None if goes_on else over,
                state="RUNNING" if goes_on else draw(st.sampled_from(ENDED)),
                lease_seconds=0.0,
                suspended_seconds=0.0,
                suspended_at=None,
                busy=busy,
                # Three times what it held, and seven joules for each second of each GPU that was measured.
                time=3.0 * placed,
                energy=None if busy is None or not began else 7.0 * common["gpus"] * (until - started),
                gpu_type=draw(st.sampled_from(["h200", "a100"])),
            )
        )
    nothing = AttemptFacts(**common, number=0, first=True, node="", leased_at=float(moments[0]), started_at=None, ended_at=None,
                           state="", lease_seconds=0.0, suspended_seconds=0.0, suspended_at=None)  # fmt: skip
    return Job(found or [nothing])


def names_of(by: Grouping) -> Callable[[AttemptFacts | LentFacts, int], str]:
    """The row that a second of an attempt belongs to."""
    if by is Grouping.WEEK:
        return lambda _facts, second: f"{monday_before(second):.0f}"
    if by is Grouping.PROJECT:
        return lambda facts, _second: f"{facts.owner}/{facts.project}"
    return lambda facts, _second: str(getattr(facts, {"user": "owner"}.get(by, by)))


def by_the_second(work: Sequence[Job], by: Grouping, within: Range, now: int) -> dict[str, Use]:
    """What each second says, added up."""
    found: dict[str, Use] = defaultdict(Use)
    name = names_of(by)
    for second in range(int(within.begin), int(within.end)):
        for job in work:
            waits = found["" if by.of_attempts else name(job.any, second)]
            ended = job.any.job_ended_at if job.any.job_ended_at is not None else now
            placed = False
            for facts in job.facts:
                if not facts.number:
                    continue
                until = now if facts.ended_at is None else facts.ended_at
                since = facts.leased_at if facts.node == "bench" else until if facts.started_at is None else facts.started_at
                if not since <= second < until:
                    continue
                placed, use = True, found[name(facts, second)]
                prepares = facts.started_at is None or second < facts.started_at
                use.held[facts.end] = use.held.get(facts.end, 0) + facts.gpus
                use.prepared += facts.gpus * prepares
                if facts.busy is not None and not prepares:
                    use.measured += facts.gpus
                    use.busy += facts.gpus * facts.busy / 100
                    use.energy += facts.gpus * 7.0
                use.asked += facts.gpus * 3.0
                use.sessions += facts.kind == "session"
            waits.waited += not placed and job.any.submitted_at <= second < ended
    return found


def sums(work: Sequence[Job], by: Grouping, within: Range, now: int) -> UseSums:
    found = UseSums(by, within, now)
    found.add(facts for job in work for facts in job.facts)
    return found


def figures(use: Use) -> list[float]:
    parts = (use.waited, use.prepared, use.measured, use.busy, use.asked, use.energy, use.sessions)
    return [*parts, *(use.held.get(end, 0.0) for end in End)]


@given(
    st.lists(jobs(), max_size=6),
    st.sampled_from(Grouping),
    st.tuples(st.integers(FIRST - 5, LAST + 5), st.integers(0, 90)),
)
def test_every_second_is_counted_once_in_its_row(work: list[Job], by: Grouping, asked: tuple[int, int]) -> None:
    within, now = Range(asked[0], asked[0] + asked[1]), LAST + 3
    found, wanted = sums(work, by, within, now), by_the_second(work, by, within, now)
    for name in found.rows.keys() | wanted.keys():
        assert figures(found.rows.get(name, Use())) == pytest.approx(figures(wanted.get(name, Use())), abs=1e-6), name
    total = Use()
    for use in wanted.values():
        total.add(use)
    assert figures(found.total) == pytest.approx(figures(total), abs=1e-6)


@given(st.lists(jobs(), max_size=8), st.integers(FIRST, LAST), st.randoms())
def test_parts_of_a_range_and_any_order_add_up_to_the_whole(work: list[Job], middle: int, random: object) -> None:
    whole = sums(work, Grouping.USER, Range(FIRST, LAST + 9), LAST)
    parts = [sums(work[::-1], Grouping.QOS, Range(*ends), LAST).total for ends in ((FIRST, middle), (middle, LAST + 9))]
    both = [sum(pair) for pair in zip(*map(figures, parts), strict=True)]
    assert both == pytest.approx(figures(whole.total), abs=1e-6)
    # All of it is what the attempts themselves say.
    held = sum(
        facts.gpus * (until - since)
        for job in work
        for facts in job.facts
        if facts.number
        for since, _, until in [facts.place(LAST)]
    )
    assert whole.total.all_held == pytest.approx(held, abs=1e-6)
    assert whole.total.jobs == len(work)


def attempt(**more: object) -> AttemptFacts:
    """One GPU from 100 to 200, with a command from 120 on."""
    plain = AttemptFacts(
        owner="ada", account="physics", qos="normal", kind="task", gpus=1, submitted_at=50.0, job_ended_at=200.0, last=1,
        number=1, first=True, node="bench", leased_at=100.0, started_at=120.0, ended_at=200.0, state="COMPLETED",
        lease_seconds=0.0, suspended_seconds=0.0, suspended_at=None,
    )  # fmt: skip
    return plain._replace(**more)


def total(*attempts: AttemptFacts, within: Range = Range(0, 1000), now: float = 500.0) -> Use:
    found = UseSums(Grouping.USER, within, now)
    found.add(attempts)
    return found.total


@pytest.mark.parametrize(
    ("state", "more", "end"),
    [
        ("COMPLETED", {}, End.COMPLETED),
        ("FAILED", {}, End.FAILED),
        ("FAILED", {"last": 2}, End.FAILED),
        ("OUT_OF_MEMORY", {}, End.FAILED),
        ("TIMEOUT", {}, End.TIMEOUT),
        ("TIMEOUT", {"last": 2}, End.CONTINUED),
        ("TIMEOUT", {"job_ended_at": None}, End.CONTINUED),
        ("CANCELLED", {}, End.CANCELLED),
        ("PREEMPTED", {"job_ended_at": None}, End.LOST),
        ("NODE_FAIL", {"last": 2}, End.LOST),
        ("CONFIGURING", {"last": 2}, End.LOST),
        ("RUNNING", {"job_ended_at": None, "ended_at": None}, End.RUNNING),
        ("CANCELLED", {"kind": "session"}, End.SESSION),
    ],
)
def test_what_came_of_an_attempt(state: str, more: dict[str, object], end: End) -> None:
    assert list(total(attempt(state=state, **more)).held) == [end]


def test_every_state_of_an_attempt_that_is_over_has_an_end() -> None:
    for state in JobState:
        if state.ended:
            assert (attempt(state=state.value).end is End.LOST) == (state in ("NODE_FAIL", "PREEMPTED"))


def test_time_in_which_it_was_stopped_is_not_held_and_is_no_wait() -> None:
    use = total(attempt(gpus=2, suspended_seconds=30.0))
    assert use.all_held == pytest.approx(2 * 70)
    assert (use.waited, use.prepared) == (50.0, 40.0)
    # It is stopped since 180.
    going_on = attempt(ended_at=None, job_ended_at=None, state="SUSPENDED", suspended_at=180.0)
    assert total(going_on, now=200.0).all_held == pytest.approx(80)
    # Of half of its command half of the pause is told.
    assert total(attempt(suspended_seconds=30.0), within=Range(160, 1000)).all_held == pytest.approx(25)


def test_cells_are_cut_at_the_ends_of_weeks_and_without_their_pauses() -> None:
    cell = LentFacts(owner="ada", account="physics", qos="normal", kind="session", cells=1, asked_at=MONDAY - 14.0,
                     since=MONDAY - 10.0, until=MONDAY + 30.0, waited=4.0, computed=20.0, paused=20.0, lent=40.0)  # fmt: skip
    found = UseSums(Grouping.WEEK, Range(0, 2 * MONDAY), LAST)
    found.add_lent([cell])
    assert {name: use.lent for name, use in found.rows.items()} == {f"{MONDAY - WEEK:.0f}": 10.0, f"{MONDAY}": 30.0}
    assert found.total.lent == 40.0
    # Of its 44 seconds it waited four for GPUs, and others had them for 20.
    use = found.total
    assert (use.cells, use.cells_waited, use.cells_computed, use.cells_paused) == (1, 4.0, 20.0, 20.0)


def test_memory_is_held_against_what_was_asked_for_where_its_peak_is_known() -> None:
    known = attempt(memory=8, memory_peak=2, gpu_memory=80, gpu_memory_peak=20)
    use = total(known, attempt(memory=8, owner="bob"))
    assert (use.memory, use.memory_peak) == (800.0, 200.0)
    # Of GPUs while the command ran.
    assert (use.gpu_memory, use.gpu_memory_peak) == (6400.0, 1600.0)


def test_multiprocessors_are_a_figure_of_their_own() -> None:
    use = total(attempt(busy=90.0, sm=20.0), attempt(busy=90.0, owner="bob"))
    assert (use.measured, use.busy, use.sm_measured, use.sm_busy) == (160.0, 144.0, 80.0, 16.0)


def test_what_cells_on_a_cluster_were_charged_is_spread_over_their_session() -> None:
    session = attempt(kind="session", gpus=0, node="slurm:gpu", lease_seconds=40.0)
    assert total(session).lent == pytest.approx(40)
    assert total(session, within=Range(160, 1000)).lent == pytest.approx(20)
    assert total(session).sessions == 80
    # On the lab's own node the cells themselves are known.
    assert total(attempt(kind="session", gpus=0, lease_seconds=40.0)).lent == 0


def test_a_job_in_two_weeks_is_one_job_of_the_whole() -> None:
    long = attempt(submitted_at=MONDAY - 90.0, leased_at=MONDAY - 60.0, started_at=MONDAY - 60.0, ended_at=MONDAY + 60.0,
                   job_ended_at=MONDAY + 60.0)  # fmt: skip
    found = UseSums(Grouping.WEEK, Range(0, 2 * MONDAY), LAST)
    found.add([long])
    assert [use.jobs for use in found.rows.values()] == [1, 1]
    assert (found.total.jobs, found.total.attempts) == (1, 1)
