"""Whose turn it is in a class that rotates: how much a job has had, who is stopped for whom, and what the lab makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import NOW, holding, lab, node, waiting

from carrel.core.control import scheduler
from carrel.core.domain.placement import Preempt, Waiting
from carrel.core.domain.qos import PreemptMode, QoS
from carrel.core.domain.rules import LabRules
from carrel.core.policy.placer import Placer
from carrel.core.policy.rotation import BEHIND, LATE, LEVELS, Turn, late_by, level, next_turn, take_turns
from carrel.simulate.lab import simulate_lab
from carrel.simulate.lab.machines import nodes_of
from carrel.simulate.outcome import Outcome
from carrel.simulate.trace import Cluster, Trace, TraceJob
from carrel.testing.examples import examples

HOUR = 3600.0
DAY = 24 * HOUR
QOS = {"batch": QoS(name="batch", rotate=3600), "other": QoS(name="other", rotate=3600), "plain": QoS(name="plain")}


@pytest.mark.parametrize(
    ("hours", "gpus", "expected"),
    [(0.0, 1, 0), (0.9, 1, 0), (1.0, 1, 1), (0.5, 2, 1), (7.9, 1, 1), (1.0, 8, 2), (1.0, 0, 1), (64.0, 1, 3), (1000.0, 8, 3)],
)
def test_what_a_job_has_had_is_counted_in_gpu_hours_and_few_levels(hours: float, gpus: int, expected: int) -> None:
    assert level(hours * HOUR, gpus, 3600) == expected


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.integers(0, 1024), st.integers(1, 10**6))
def test_nobody_is_later_by_more_than_a_bound_and_more_never_counts_for_less(
    ran: float, more: float, gpus: int, rotate: int
) -> None:
    assert 0 <= late_by(ran, gpus, rotate) <= late_by(ran + more, gpus, rotate) <= LATE[-1] == 28 * DAY


def runs(job_id: int, *devices: str, ran: float = 2 * HOUR, turn: float | None = None, ago: float = DAY, **more: object) -> Turn:
    """A job that has run for so long, the last `turn` of it without a stop."""
    fields: dict[str, object] = {"suspendable": True, "preemptible": True, "leaving": False}
    change = {key: more.pop(key) for key in fields if key in more}
    held = holding(job_id, "n1", *devices, left=30 * DAY, **more)  # type: ignore[arg-type]
    since, gpus = NOW - (ran if turn is None else turn), len(devices)
    again = replace(
        waiting(job_id, gpus, ago=ago, owner=held.owner, qos=held.qos, late_by=late_by(ran, gpus, 3600)),
        level=level(ran, gpus, 3600),
        ran=ran,
    )
    return Turn(held=replace(held, **{**fields, **change}), again=again, since=since)  # type: ignore[arg-type]


def stopped(promised: Sequence[Waiting], *turns: Turn) -> Sequence[Preempt]:
    picture = lab([node("n1", "h200", "h200")], promised, [turn.held for turn in turns], qos=QOS)
    return take_turns(picture, promised, turns, NOW)


def test_who_has_had_less_has_the_place_of_whoever_has_had_more_and_came_last() -> None:
    found = stopped([waiting(9)], runs(1, "n1-0", ago=2 * DAY), runs(2, "n1-1", ago=DAY))
    assert found == (Preempt(job_id=2, mode=PreemptMode.SUSPEND, by=9, qos="batch"),)
    assert [one.job_id for one in stopped([waiting(9, 2)], runs(1, "n1-0"), runs(2, "n1-1"))] == [1, 2]
    # Two GPUs for two hours are less than one for a day.
    assert [one.job_id for one in stopped([waiting(9)], runs(1, "n1-0", ran=DAY), runs(2, "n1-1", ran=3 * HOUR))] == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"turn": HOUR - 1},  # it has just begun
        {"ran": HOUR - 1, "turn": HOUR - 1},
        {"qos": "other"},
        {"qos": "plain"},
        {"suspendable": False},  # its state is on a GPU
        {"preemptible": False},
        {"ago": 40 * DAY},  # it came so early that it is before the other with all that it has had
    ],
)
def test_others_keep_their_place(other: dict[str, object]) -> None:
    assert [one.job_id for one in stopped([waiting(9)], runs(1, "n1-0"), runs(2, "n1-1"))] == [1]
    assert not stopped([waiting(9, 2)], runs(1, "n1-0"), runs(2, "n1-1", **other))  # type: ignore[arg-type]


def test_nobody_is_stopped_for_what_is_free_soon() -> None:
    assert not stopped([waiting(9)], runs(1, "n1-0"), runs(2, "n1-1", leaving=True))
    assert [one.job_id for one in stopped([waiting(9, 2)], runs(1, "n1-0"), runs(2, "n1-1", leaving=True))] == [1]


def test_who_waits_for_a_further_turn_takes_from_its_like_only_when_it_has_waited_for_long() -> None:
    again = replace(waiting(9, ago=DAY), level=1, late_by=LATE[1])
    one, other = runs(1, "n1-0", ago=HOUR), runs(2, "n1-1", ago=HOUR)
    assert not stopped([again], one, other)
    long = replace(waiting(9, ago=BEHIND + DAY), level=1, late_by=LATE[1])
    assert len(stopped([long], one, other)) == 1
    # Whoever has had more gives way to it at once.
    assert [it.job_id for it in stopped([again], one, runs(2, "n1-1", ran=20 * HOUR))] == [2]


def test_only_the_first_of_a_partition_has_room_made() -> None:
    first, second = waiting(8, qos="plain"), waiting(9)
    assert not stopped([first, second], runs(1, "n1-0"), runs(2, "n1-1"))
    assert stopped([replace(first, partition="there"), second], runs(1, "n1-0"), runs(2, "n1-1"))
    assert not stopped([replace(second, not_before=NOW + 1)], runs(1, "n1-0"), runs(2, "n1-1"))


def test_limits_hold() -> None:
    picture = lab([node("n1", "h200")], [waiting(9)], [runs(1, "n1-0", owner="ada").held], qos=QOS)
    assert take_turns(picture, [waiting(9)], [runs(1, "n1-0", owner="ada")], NOW)
    limited = replace(picture, qos={"batch": replace(QOS["batch"], max_jobs_per_user=1)})
    assert not take_turns(limited, [waiting(9)], [runs(1, "n1-0", owner="ada")], NOW)


def test_it_is_known_when_to_look_again() -> None:
    begun = runs(1, "n1-0", ran=600, turn=600)
    assert next_turn(QOS, [begun], NOW) == NOW + 3000
    assert next_turn(QOS, [runs(1, "n1-0", ran=2 * HOUR)], NOW) == NOW + 6 * HOUR
    assert next_turn(QOS, [runs(1, "n1-0", "n1-1", ran=2 * HOUR)], NOW) == NOW + 2 * HOUR
    assert next_turn(QOS, [runs(1, "n1-0", ran=LEVELS[-1] * HOUR)], NOW) == inf


# ---- in a lab whose time jumps


ONE = nodes_of(Cluster(nodes=1, gpus_per_node=1))
SMALL = nodes_of(Cluster(nodes=2, gpus_per_node=4))


def rules(*services: QoS) -> LabRules:
    first = services[0].name
    return LabRules(qos={one.name: one for one in services}, default_qos=first, session_qos=first, share_weight=0.0)


ROTATING = rules(QOS["batch"])


def job(number: int, at: float, hours: float, gpus: int = 1, **more: object) -> TraceJob:
    time = int(hours * HOUR)
    return TraceJob(id=number, submitted=at, duration=hours * HOUR, gpus=gpus, **{"time": time, **more})  # type: ignore[arg-type]


def ends(outcome: Outcome) -> dict[int, float]:
    return {run.id: run.end / HOUR for run in outcome.runs}


def test_a_short_job_goes_between_and_the_long_one_loses_nothing() -> None:
    jobs = Trace(name="few", jobs=(job(1, 0, 10), job(2, 2 * HOUR, 0.5)))
    assert ends(simulate_lab(rules(QoS(name="batch")), jobs, ONE)) == {1: 10, 2: 10.5}
    outcome = simulate_lab(ROTATING, jobs, ONE)
    assert ends(outcome) == {1: 10.5, 2: 2.5}
    # All of its walltime was its own, and what it takes to go on is counted.
    assert [(run.ran / HOUR, run.preemptions) for run in outcome.runs] == [(10, 1), (0.5, 0)]
    moved = simulate_lab(ROTATING, jobs, ONE, move=36)
    assert ends(moved) == pytest.approx({1: 10.51, 2: 2.5})
    assert [run.ran / HOUR for run in moved.runs] == pytest.approx([10.01, 0.5])


def test_a_turn_lasts_for_as_long_as_the_class_says() -> None:
    jobs = Trace(name="few", jobs=(job(1, 0, 10), job(2, 60, 0.5), job(3, 1.25 * HOUR, 10)))
    # The second waits until the first has run for an hour; the third has as much as the first when it has run for eight.
    assert {run.id: run.start / HOUR for run in simulate_lab(ROTATING, jobs, ONE).runs} == {1: 0, 2: 1, 3: 1.5}


def test_whoever_has_waited_for_long_goes_before_those_who_come() -> None:
    # A job that is stopped for short ones again and again, which come for sixty days without a gap.
    short = [job(number, number * HOUR, 1, time=3600) for number in range(2, 60 * 24)]
    outcome = simulate_lab(ROTATING, Trace(name="many", jobs=(job(1, 0, 100), *short)), ONE)
    (long,) = [run for run in outcome.runs if run.id == 1]
    assert long.end <= (LATE[-1] + BEHIND) + 2 * 100 * HOUR


DRAWN = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.floats(0.05, 12),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from(["batch", "other", "plain"]),
        st.booleans(),
    ),
    max_size=20,
)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(DRAWN, st.sampled_from([0.0, 60.0]))
def test_everybody_ends_with_all_their_work_and_only_those_who_rotate_are_stopped(
    drawn: list[tuple[int, float, int, str, bool]], move: float
) -> None:
    jobs = _jobs(drawn)
    outcome = simulate_lab(rules(*QOS.values()), jobs, SMALL, move=move)
    assert len(outcome.runs) == len(drawn)
    for run, one in zip(outcome.runs, jobs.jobs, strict=True):
        assert run.ran == pytest.approx(one.duration + move * run.preemptions)
        assert run.end - run.start >= run.ran - 1e-6
        assert not run.preemptions or (one.qos != "plain" and one.gpus <= 4)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(DRAWN)
def test_what_was_promised_to_those_who_do_not_rotate_is_kept(drawn: list[tuple[int, float, int, str, bool]]) -> None:
    promised: dict[int, float] = {}

    class Watched(Placer):
        def place(self, now: float) -> object:  # type: ignore[override]
            starts = super().place(now)
            for one in self.promises:
                if one.job.qos == "plain":
                    assert one.at <= promised.get(one.job.id, inf) + 1e-3
                    promised[one.job.id] = min(one.at, promised.get(one.job.id, inf))
            return starts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "Placer", Watched)
        outcome = simulate_lab(rules(*QOS.values()), _jobs(drawn), SMALL)
    for run in outcome.runs:
        assert run.start <= promised.get(run.id, inf) + 1e-3


def _jobs(drawn: list[tuple[int, float, int, str, bool]]) -> Trace:
    made = [
        job(number, at * HOUR, hours, gpus, qos=qos, time=int(hours * HOUR) + 1 if exact else int(3 * hours * HOUR) + 60)
        for number, (at, hours, gpus, qos, exact) in enumerate(sorted(drawn), start=1)
    ]
    return Trace(name="drawn", jobs=tuple(made))


# ---- jobs with GPU state


def has_had(job_id: int, *devices: str) -> Waiting:
    """A job that waits for its next turn, whose state comes back to these devices only."""
    ran = 2 * HOUR
    job = waiting(job_id, len(devices), ago=DAY, late_by=late_by(ran, len(devices), 3600))
    return replace(job, level=1, ran=ran, stopped_at=NOW - HOUR, devices=devices)


def test_who_has_the_devices_of_its_state_is_stopped_for_it_and_no_other() -> None:
    mine, other = runs(1, "n1-0", ran=9 * HOUR), runs(2, "n1-1", ran=900 * HOUR)
    assert [one.job_id for one in stopped([has_had(3, "n1-0")], mine, other)] == [1]
    assert [one.job_id for one in stopped([has_had(3, "n1-0", "n1-1")], mine, other)] == [1, 2]


def test_nobody_is_stopped_where_not_all_devices_of_its_state_come_free() -> None:
    mine, other = runs(1, "n1-0", ran=9 * HOUR), runs(2, "n1-1", ran=2 * HOUR, ago=2 * DAY)
    assert stopped([has_had(3, "n1-0", "n1-1")], mine, other) == ()


def test_a_turn_is_worth_its_moves() -> None:
    short = runs(1, "n1-0", "n1-1", ran=9 * HOUR, turn=2 * HOUR)
    assert [one.job_id for one in stopped([waiting(3, 2)], short)] == [1]
    assert stopped([waiting(3, 2)], replace(short, moves=HOUR)) == ()
    assert next_turn(QOS, [replace(short, moves=HOUR)], NOW) == NOW + 2 * HOUR
