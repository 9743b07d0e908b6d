"""What is charged to whom: the same from memory as after a restart, and nothing twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import scheduled
from hypothesis import given
from hypothesis import strategies as st
from scheduled import rules

from carrel.core.control.ports import Used
from carrel.core.control.rules import RuleBook
from carrel.core.control.usage import UsageBook
from carrel.core.domain.account import Account
from carrel.core.domain.job import Job, JobState, Preemption
from carrel.core.domain.qos import JobKind, PreemptMode
from carrel.core.domain.resources import Resources
from carrel.core.policy.fairshare import accrued, faded

HOUR = 3600.0
RULES = rules(half_life=10 * HOUR, cpu_charge=0.1)
SESSION = {"kind": JobKind.SESSION, "gpus": 0}


def job(number: int, owner: str = "ada", **fields: object) -> Job:
    usual = {"state": JobState.RUNNING, "account": "physics", "gpus": 1, "cpus": 5, "attempt": 1, "node": "n1"}
    return scheduled.job(number, owner, **{**usual, **fields})


def seconds(book: UsageBook, now: float, **more: object) -> dict[str, float]:
    return {item.user: item.seconds for item in book.usage(now, **more)}  # type: ignore[arg-type]


def test_several_jobs_of_one_user_are_charged_together_and_each_until_its_end() -> None:
    book = UsageBook(RuleBook(replace(RULES, half_life=1e10)))
    wide = replace(job(3), resources=Resources(gpus=1, cpus=5, nodes=2))
    for one, at in ((job(1), 0.0), (job(2), 100.0), (wide, 200.0)):
        book.put(one, now=at)
    assert book.held_by("ada") == 1.5 + 1.5 + 3.0
    for number, left, at in ((1, 4.5, 300.0), (2, 3.0, 400.0), (3, 0.0, 500.0)):
        book.put(job(number, state=JobState.COMPLETED), now=at)
        assert book.held_by("ada") == left
    assert seconds(book, 900.0, others=[("physics", "bob")]) == {
        "ada": pytest.approx(1.5 * 300 + 1.5 * 300 + 3.0 * 300, rel=1e-4),
        "bob": 0.0,
    }


def test_who_is_stopped_is_charged_nothing_also_after_a_restart() -> None:
    rules = RuleBook(replace(RULES, half_life=1e12))
    book, rate = UsageBook(rules), 1.5
    way = Preemption(mode=PreemptMode.SUSPEND, by=9, qos="desk", at=90.0, grace=60)
    book.put(job(1), now=0.0)
    book.put(job(1, preemption=way), now=90.0)  # it is about to be stopped, and holds all that it had
    book.put(job(1, state=JobState.SUSPENDED, preemption=way), now=100.0)
    assert seconds(book, 500.0) == {"ada": pytest.approx(100 * rate)}
    assert not book.holds(1)
    book.put(job(1, state=JobState.SUSPENDED), now=500.0)  # its devices are its own again
    book.put(job(1, state=JobState.COMPLETED, ended_at=600.0), now=600.0)
    assert seconds(book, 900.0) == {"ada": pytest.approx(200 * rate)}
    again = UsageBook(rules)
    used = Used(
        account="physics", owner="ada", kind=JobKind.TASK, gpus=1, cpus=5, since=0.0, until=600.0, suspended_seconds=400.0
    )
    again.load([used])
    assert seconds(again, 900.0) == {"ada": pytest.approx(200 * rate)}


def test_what_is_held_is_charged_while_it_is_held_and_fades_afterwards() -> None:
    book = UsageBook(RuleBook(RULES))
    book.put(job(1, gpus=2), now=0.0)
    book.put(job(1, gpus=2), now=HOUR)  # it went on
    rate = 2 + 5 * 0.1
    assert seconds(book, HOUR) == {"ada": pytest.approx(accrued(rate, 0, HOUR, 10 * HOUR))}
    assert book.held_by("ada") == rate
    book.put(job(1, state=JobState.COMPLETED), now=2 * HOUR)
    whole = accrued(rate, 0, 2 * HOUR, 10 * HOUR)
    assert seconds(book, 2 * HOUR) == {"ada": pytest.approx(whole)}
    assert seconds(book, 12 * HOUR) == {"ada": pytest.approx(whole / 2)}
    assert book.held_by("ada") == 0
    book.put(job(1, state=JobState.COMPLETED), now=9 * HOUR)  # said once more
    assert seconds(book, 12 * HOUR) == {"ada": pytest.approx(whole / 2)}


def test_a_restart_counts_the_same_from_what_is_stored() -> None:
    lived, restarted = UsageBook(RuleBook(RULES)), UsageBook(RuleBook(RULES))
    lived.put(job(1), now=0.0)
    lived.put(job(1, state=JobState.PENDING), now=HOUR)  # it failed, and is tried again
    lived.put(job(1, attempt=2), now=3 * HOUR)
    lived.put(job(2, "bob", kind=JobKind.SESSION, gpus=0), now=HOUR)
    one = Used(account="physics", owner="ada", kind=JobKind.TASK, gpus=1, cpus=5, since=0.0, until=HOUR)
    restarted.load([one])
    restarted.put(job(1, attempt=2), now=5 * HOUR, since=3 * HOUR)
    restarted.put(job(2, "bob", kind=JobKind.SESSION, gpus=0), now=5 * HOUR, since=HOUR)
    assert seconds(restarted, 6 * HOUR) == {name: pytest.approx(value) for name, value in seconds(lived, 6 * HOUR).items()}
    assert seconds(lived, 6 * HOUR)["bob"] == 0  # a session holds no processors, and nothing that it has not reserved
    expected = faded(accrued(1.5, 0, HOUR, 10 * HOUR), 5 * HOUR, 10 * HOUR) + accrued(1.5, 3 * HOUR, 6 * HOUR, 10 * HOUR)
    assert seconds(lived, 6 * HOUR)["ada"] == pytest.approx(expected)


WAY = Preemption(mode=PreemptMode.SUSPEND, by=9, qos="desk", at=690.0, grace=60)
NEVER_FADES = RuleBook(replace(RULES, half_life=1e10))


@pytest.mark.parametrize(
    ("fields", "ran", "rate"),
    [
        ({}, 900.0, 1.5),
        ({"suspended_seconds": 20.0}, 880.0, 1.5),
        # It stands still: another has its place, or cells have its devices.
        ({"state": JobState.SUSPENDED, "preemption": WAY, "suspended_at": 700.0, "suspended_seconds": 20.0}, 580.0, 0.0),
        ({"suspended_at": 700.0}, 600.0, 0.0),
        # It is about to be stopped.
        ({"preemption": WAY}, 900.0, 1.5),
        # A cluster's queue has had it since 100, and its command began at 300.
        ({"node": "slurm:gpu", "started_at": 300.0}, 700.0, 1.5),
        ({"node": "slurm:gpu", "started_at": 300.0, "suspended_seconds": 20.0}, 680.0, 1.5),
        ({"node": "slurm:gpu", "state": JobState.CONFIGURING}, 0.0, 0.0),
        # When a command of the lab's own machine began does not matter: it has had its place from 100 on.
        ({"started_at": 300.0}, 900.0, 1.5),
    ],
)
def test_a_server_takes_up_what_runs_or_stands_still_with_what_was_used_before(
    fields: dict[str, object], ran: float, rate: float
) -> None:
    book, one = UsageBook(NEVER_FADES), job(1, **fields)  # type: ignore[arg-type]
    book.take_up(one, leased_at=100.0, borrowed=0.0, now=1000.0)
    assert seconds(book, 1000.0).get("ada", 0.0) == pytest.approx(1.5 * ran)
    assert (book.held_by("ada"), book.holds(1)) == (rate, rate > 0)
    book.put(one, now=1000.0)  # it is put in the queue
    assert seconds(book, 2000.0).get("ada", 0.0) == pytest.approx(1.5 * ran + 1000 * rate)


def test_of_sessions_that_have_ended_those_are_forgotten_of_which_no_broker_speaks() -> None:
    book = UsageBook(RuleBook(RULES))
    for number, state in ((11, JobState.RUNNING), (12, JobState.RUNNING), (13, JobState.COMPLETED), (14, JobState.COMPLETED)):
        book.put(job(number, **SESSION), now=0.0)
        assert book.borrowed(number, 1, 5.0, 0.0) == 5.0
        book.put(job(number, **SESSION, state=state), now=1.0)
    book.let_go([(12, 1), (14, 1)])
    assert [book.borrowed(number, 1, 6.0, 2.0) for number in (11, 12, 13, 14)] == [6.0, 6.0, None, 6.0]
    assert [book.charged(number, 1) for number in (11, 12, 13, 14)] == [6.0, 6.0, None, 6.0]


@given(
    steps=st.lists(st.tuples(st.integers(1, 500), st.sampled_from(["stops", "lends", "goes on"])), max_size=6),
    at=st.integers(0, 3000),
    cluster=st.booleans(),
)
def test_whenever_the_server_is_restarted_a_job_is_charged_for_what_it_ran(
    steps: list[tuple[int, str]], at: int, *, cluster: bool
) -> None:
    """Without fading: a server that begins at any moment knows as much as one that has run all the time."""
    lived, now, one = UsageBook(NEVER_FADES), 100.0, job(1, started_at=100.0, node="slurm:gpu" if cluster else "n1")
    lived.put(one, now=now)
    moments = [(now, one)]
    for later, what in steps:
        now += later
        waited = one.suspended_seconds + (0.0 if one.suspended_at is None else now - one.suspended_at)
        one = replace(one, state=JobState.RUNNING, preemption=None, suspended_at=None, suspended_seconds=waited)
        if what != "goes on":
            one = replace(one, suspended_at=now)
        if what == "stops":
            one = replace(one, state=JobState.SUSPENDED, preemption=WAY)
        lived.put(one, now=now)
        moments.append((now, one))
    known = [one for moment, one in moments if moment <= 100.0 + at][-1]
    restarted = UsageBook(NEVER_FADES)
    restarted.take_up(known, leased_at=100.0, borrowed=0.0, now=100.0 + at)
    for moment, one in moments:
        if moment > 100.0 + at:
            restarted.put(one, now=moment)
    end = max(now, 100.0 + at) + 10
    assert seconds(restarted, end)["ada"] == pytest.approx(seconds(lived, end)["ada"], abs=0.1)


def test_what_ended_while_no_server_ran_is_charged_to_its_end() -> None:
    book = UsageBook(RuleBook(RULES))
    book.put(job(1), now=5 * HOUR, since=0.0)
    book.put(job(1, state=JobState.COMPLETED, ended_at=HOUR), now=5 * HOUR)
    charge = accrued(1.5, 0, HOUR, 10 * HOUR)
    assert seconds(book, 5 * HOUR) == {"ada": pytest.approx(faded(charge, 4 * HOUR, 10 * HOUR))}


def test_what_cells_borrow_is_charged_as_it_is_reported() -> None:
    book = UsageBook(RuleBook(RULES))
    book.put(job(1, **SESSION), now=0.0)
    assert book.borrowed(1, 1, 600.0, HOUR) == 600.0
    assert book.borrowed(1, 1, 600.0, 2 * HOUR) == 600.0, "the same total is nothing new"
    assert seconds(book, HOUR + 10 * HOUR) == {"ada": pytest.approx(300.0)}, "it fades like everything else"
    assert book.borrowed(1, 1, 700.0, 11 * HOUR) == 700.0
    assert seconds(book, 11 * HOUR) == {"ada": pytest.approx(400.0)}
    assert book.held_by("ada") == 0


def test_a_total_that_begins_anew_charges_only_what_comes_then() -> None:
    book = UsageBook(RuleBook(RULES))
    book.put(job(1, **SESSION), now=0.0)
    book.borrowed(1, 1, 600.0, 0.0)
    assert book.borrowed(1, 1, 5.0, 0.0) == 600.0
    assert book.borrowed(1, 1, 25.0, 0.0) == 620.0
    assert seconds(book, 0.0) == {"ada": pytest.approx(620.0)}


def test_what_cells_of_an_ended_session_borrowed_is_spread_over_its_time() -> None:
    book = UsageBook(RuleBook(RULES))
    used = Used(account="physics", owner="ada", kind=JobKind.SESSION, gpus=0, cpus=5, since=0.0, until=HOUR, lease_seconds=600.0)
    book.load([used])
    charge = accrued(600 / HOUR, 0.0, HOUR, 10 * HOUR)
    assert seconds(book, HOUR) == {"ada": pytest.approx(charge)}
    book.recall(1, 1, ("physics", "ada"), 600.0)
    assert book.borrowed(1, 1, 610.0, HOUR) == 610.0, "the broker's last word came late"
    assert seconds(book, HOUR) == {"ada": pytest.approx(charge + 10)}


@given(
    totals=st.lists(st.floats(0, 1000), min_size=1, max_size=12).map(sorted),
    restarts=st.sets(st.integers(0, 11)),
    ended=st.integers(0, 12),
)
def test_however_often_the_server_is_restarted_a_charge_is_made_once(totals: list[float], restarts: set[int], ended: int) -> None:
    """Without fading: what was charged is the broker's last total, whichever reports a server has heard twice or not at all."""
    rules = RuleBook(replace(RULES, half_life=1e8))
    book, stored, over = UsageBook(rules), 0.0, False
    book.put(job(1, **SESSION), now=1.0)
    for step, total in enumerate(totals):
        now = 2.0 + step
        if step == ended:
            book.put(job(1, **SESSION, state=JobState.COMPLETED, ended_at=now), now=now)
            over = True
        if step in restarts:
            book = UsageBook(rules)
            if over:
                used = Used(
                    account="physics",
                    owner="ada",
                    kind=JobKind.SESSION,
                    gpus=0,
                    cpus=5,
                    since=1.0,
                    until=now,
                    lease_seconds=stored,
                )
                book.load([used])
            else:
                book.put(job(1, **SESSION), now=now, since=1.0, borrowed=stored)
        for _ in range(2):
            charged = book.borrowed(1, 1, total, now)
            if charged is None:
                book.recall(1, 1, ("physics", "ada"), stored)
                charged = book.borrowed(1, 1, total, now)
        assert charged is not None
        if step % 2:
            stored = charged  # not each of them is written down
    assert sum(seconds(book, now).values()) == pytest.approx(totals[-1], abs=1e-3)


def test_giving_back_pays() -> None:
    rules = replace(RULES, accounts={"physics": Account(name="physics")})
    book = UsageBook(RuleBook(rules))
    book.put(job(1, "bob"), now=0.0)
    book.put(job(1, "bob", state=JobState.COMPLETED), now=2 * HOUR)
    book.put(job(2, "ada"), now=0.5 * HOUR)
    now = 2 * HOUR
    assert {one.user: one.seconds for one in book.standings(now)} == seconds(book, now)
    kept = {standing.user: standing.factor for standing in book.standings(now, ahead=2 * HOUR)}
    released = {standing.user: standing.factor for standing in book.standings(now, ahead=2 * HOUR, released="ada")}
    # Of what both have used, ada has 3.5 of 5.5 hours, or 1.5 of 3.5; the half-life of ten hours changes it a little.
    assert (kept["ada"], released["ada"]) == (pytest.approx(0.40, abs=0.02), pytest.approx(0.56, abs=0.02))
