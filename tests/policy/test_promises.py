"""What blocked jobs are promised is kept, whoever comes later."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_labs import NOW, Lab, holding, lab, node, place, rank, snapshots, waiting

from carrel.core.domain.placement import Snapshot, Waiting
from carrel.core.domain.qos import QoS
from carrel.core.domain.reservation import Reservation
from support.examples import examples

HOUR = 3600


def promised(found: Lab) -> dict[int, tuple[float, list[str]]]:
    return {promise.job.id: (promise.at, [room.name for room in promise.rooms]) for promise in found.placer.promises}


def test_the_first_few_blocked_jobs_are_promised_one_after_the_other() -> None:
    nodes = [node("n1", "h200", "h200", "h200", "h200")]
    busy = [holding(9, "n1", "n1-0", "n1-1", "n1-2", left=HOUR)]
    waits = [waiting(1, 4, ago=9, time=HOUR), waiting(2, 3, ago=8, time=2 * HOUR), waiting(3, 2, ago=7), waiting(4, 1, ago=6)]
    found = Lab(lab(nodes, waits, busy, promises=3))
    assert [start.job_id for start in found.place()] == [4]
    assert promised(found) == {
        1: (NOW + HOUR, ["n1"]),
        2: (NOW + 2 * HOUR, ["n1"]),
        3: (NOW + 4 * HOUR, ["n1"]),
    }
    assert [(hold.reason.code, hold.estimated_start) for hold in place(found.picture, NOW).pending] == [
        ("Resources", NOW + HOUR),
        ("Priority", NOW + 2 * HOUR),
        ("Priority", NOW + 4 * HOUR),
    ]


@pytest.mark.parametrize(("promises", "started"), [(1, [3]), (2, [])])
def test_who_would_delay_the_second_starts_only_where_one_is_promised_something(promises: int, started: list[int]) -> None:
    """Job 1 waits for n1 and job 2 for n2; job 3 would run on n2 beyond the moment at which job 2 could start there."""
    nodes = [node("n1", "h200", "h200"), node("n2", "a100", "a100")]
    busy = [holding(8, "n1", "n1-0", left=HOUR), holding(9, "n2", "n2-0", left=HOUR)]
    waits = [
        waiting(1, 2, ago=9, gpu_type="h200"), waiting(2, 2, ago=8, gpu_type="a100"),
        waiting(3, 1, ago=7, gpu_type="a100", time=2 * HOUR),
    ]  # fmt: skip
    assert [start.job_id for start in Lab(lab(nodes, waits, busy, promises=promises)).place()] == started


def test_a_promise_for_any_type_leaves_each_type_to_those_who_ask_for_it() -> None:
    nodes = [node("n1", "a100", "a100", "h200", "h200")]
    busy = [holding(9, "n1", "n1-0", "n1-1", "n1-2", "n1-3", left=HOUR)]
    waits = [waiting(1, 2, ago=9), waiting(2, 2, ago=8, gpu_type="h200"), waiting(3, 1, ago=7)]
    found = Lab(lab(nodes, waits, busy, promises=3))
    assert list(found.place()) == []
    assert promised(found) == {1: (NOW + HOUR, ["n1"]), 2: (NOW + HOUR, ["n1"]), 3: (NOW + 2 * HOUR, ["n1"])}


def test_two_promises_of_one_user_keep_room_for_both_within_the_limit() -> None:
    """Job 3 would be the fourth of ada's GPUs that are promised or held, from the moment on at which the promises begin."""
    nodes = [node("n1", "h200", "h200", "h200", "h200"), node("n2", "a100")]
    busy = [holding(9, "n1", "n1-0", "n1-1", "n1-2", "n1-3", left=HOUR)]
    qos = {"batch": QoS(name="batch", max_gpus_per_user=3)}

    def later(time: int, promises: int) -> list[int]:
        waits = [
            waiting(1, 2, ago=9, gpu_type="h200"), waiting(2, 1, ago=8, gpu_type="h200"),
            waiting(3, 1, ago=7, gpu_type="a100", time=time),
        ]  # fmt: skip
        return [start.job_id for start in Lab(lab(nodes, waits, busy, qos=qos, promises=promises)).place()]

    assert later(HOUR, 1) == later(HOUR + 1, 1) == [3]
    assert (later(HOUR, 2), later(HOUR + 1, 2)) == ([3], [])


def test_the_second_is_promised_a_place_between_the_first_and_a_window() -> None:
    window = Reservation(name="repair", begin=NOW + 3 * HOUR, end=NOW + 4 * HOUR)
    busy = [holding(9, "n1", "n1-0", left=HOUR)]
    waits = [waiting(1, 1, ago=9, time=HOUR), waiting(2, 1, ago=8, time=2 * HOUR), waiting(3, 1, ago=7, time=HOUR)]
    found = Lab(lab([node("n1", "h200")], waits, busy, promises=3, reservations=[window]))
    found.place()
    assert [at - NOW for at, _ in promised(found).values()] == [HOUR, 4 * HOUR, 2 * HOUR]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(snapshots(), st.integers(2, 6), st.data())
def test_nobody_who_comes_later_delays_what_was_promised(snapshot: Snapshot, most: int, data: st.DataObject) -> None:
    """Until the first promise is due, every job of the queue keeps its own, while others are submitted and start beside it."""
    found = Lab(replace(snapshot, promises=most))
    found.place()
    before = promised(found)
    if not before:
        return
    first = min(at for at, _ in before.values())
    ranks = {job.id: rank(job, snapshot) for job in snapshot.waiting}
    last = max(ranks[job] for job in before)
    for step in range(data.draw(st.integers(1, 4))):
        new = data.draw(st.sampled_from(snapshot.waiting))
        late = replace(new, id=2000 + step, not_before=0.0, submitted_at=NOW + 10_000_000 + step)
        if rank(late, snapshot) < last:
            continue  # of a class that takes from others, and so goes ahead of them
        found.wait(late)
        found.place()
        after = promised(found)
        assert {job: at for job, (at, _) in after.items() if job in before} == {job: at for job, (at, _) in before.items()}
    # Who is ahead of them, and was held back by a limit, may start when another job of the same owner ends.
    if any(ranks[job.id] < last and job.id not in before and job.id not in found.holding for job in snapshot.waiting):
        return
    # Time goes on: who is due ends, and what is promised comes no later.
    ends = sorted({held.over_by for held in found.holding.values() if NOW < held.over_by < first})
    for moment in ends:
        found.now = moment
        for held in [held for held in found.holding.values() if held.over_by <= moment]:
            found.forget(held.id)
        found.place()
        after = promised(found)
        assert all(after[job][0] <= at for job, (at, _) in before.items() if job in after)
        assert all(job in after or job in found.holding for job in before)


def test_promises_go_to_the_jobs_of_one_group_in_their_order() -> None:
    """Jobs that are alike stand in one group, and others between them."""
    busy = [holding(9, "n1", "n1-0", left=HOUR)]

    def alike(job_id: int, ago: float) -> Waiting:
        return waiting(job_id, 1, ago=ago, time=HOUR)

    waits = [alike(1, 9), waiting(2, 1, ago=8, time=2 * HOUR), alike(3, 7), alike(4, 6), waiting(5, 1, ago=5, time=2 * HOUR)]
    found = Lab(lab([node("n1", "h200")], waits, busy, promises=4))
    assert list(found.place()) == []
    assert [(job, (at - NOW) / HOUR) for job, (at, _) in promised(found).items()] == [(1, 1), (2, 2), (3, 4), (4, 5)]
    found.forget(3)
    found.place()
    assert [(job, (at - NOW) / HOUR) for job, (at, _) in promised(found).items()] == [(1, 1), (2, 2), (4, 4), (5, 5)]
