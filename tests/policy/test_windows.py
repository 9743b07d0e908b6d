"""Nodes that are kept for some people between two moments."""

from __future__ import annotations

import pytest
from policy_labs import NOW, holding, lab, node, place, waiting

from carrel.core.domain.placement import Snapshot
from carrel.core.domain.reservation import Reservation
from carrel.core.policy.order import order_of
from carrel.core.policy.placer import Placer

HOUR = 3600
COURSE = Reservation(
    name="course", begin=NOW + 2 * HOUR, end=NOW + 6 * HOUR, nodes=("n1",), users=frozenset({"cyd"}), reason="deep learning"
)
TEXT = 'needs 1 GPU, 1 CPU, 1G for 3 h; n1 is kept for reservation "course" (deep learning) in 2 h, for 4 h'


def starts(snapshot: Snapshot, now: float = NOW) -> list[int]:
    return [start.job_id for start in place(snapshot, now).starts]


def test_who_would_reach_into_the_window_waits_for_its_end() -> None:
    waits = [waiting(1, ago=9, time=3 * HOUR), waiting(2, ago=8, time=2 * HOUR), waiting(3, ago=7, time=3 * HOUR, owner="cyd")]
    snapshot = lab([node("n1", "h200", "h200", "h200")], waits, reservations=[COURSE])
    assert starts(snapshot) == [2, 3]
    hold = place(snapshot, NOW).wait_of(1)
    assert hold.estimated_start == COURSE.end
    assert hold.reason.code == "Resources"
    assert hold.reason.message == f"{TEXT}; a job of at most 2 h could start before it; in 6 h at the latest"


def test_inside_the_window_it_says_how_long_it_goes_on() -> None:
    snapshot = lab([node("n1", "h200")], [waiting(1, time=60)], reservations=[COURSE])
    hold = place(snapshot, COURSE.begin + HOUR).wait_of(1)
    assert 'n1 is kept for reservation "course" (deep learning) for 3 h more; in 3 h at the latest' in hold.reason.message
    assert starts(snapshot, COURSE.end) == [1]


def test_who_runs_when_it_is_made_goes_on() -> None:
    busy = holding(9, "n1", "n1-0", left=9 * HOUR)
    snapshot = lab([node("n1", "h200")], [waiting(1, ago=5, time=HOUR)], [busy], reservations=[COURSE])
    hold = place(snapshot, NOW).wait_of(1)
    assert hold.estimated_start == NOW + 9 * HOUR
    assert hold.reason.message.startswith("needs 1 GPU on one node; none is free")


def test_an_account_is_admitted_with_all_its_members_and_maintenance_admits_nobody() -> None:
    physics = Reservation(name="physics", begin=NOW, end=NOW + 60, accounts=frozenset({"physics"}))
    waits = [waiting(1, account="physics"), waiting(2, account="biology")]
    nodes = [node("n1", "h200", "h200")]
    assert starts(lab(nodes, waits, reservations=[physics])) == [1]
    assert starts(lab(nodes, waits, reservations=[Reservation(name="repair", begin=NOW, end=NOW + 60)])) == []


def test_the_hours_before_a_window_are_not_wasted() -> None:
    """The job that waits for the end of the window is promised nothing before it, so others may have the node until then."""
    waits = [waiting(1, ago=9, time=3 * HOUR), waiting(2, ago=8, time=HOUR), waiting(3, ago=7, time=HOUR)]
    assert starts(lab([node("n1", "h200", "h200")], waits, reservations=[COURSE])) == [2, 3]


def test_several_nodes_are_free_at_the_same_time() -> None:
    windows = [
        Reservation(name="a", begin=NOW + 100, end=NOW + 200, nodes=("n1",)),
        Reservation(name="b", begin=NOW + 250, end=NOW + 300, nodes=("n2",)),
    ]
    snapshot = lab([node("n1", "h200"), node("n2", "h200")], [waiting(1, nodes=2, time=150)], reservations=windows)
    hold = place(snapshot, NOW).wait_of(1)
    assert hold.estimated_start == NOW + 300


@pytest.mark.parametrize(
    ("now", "change"), [(NOW, COURSE.begin), (COURSE.begin, COURSE.end), (COURSE.end - 1, COURSE.end), (COURSE.end, None)]
)
def test_the_placer_knows_when_to_look_again(now: float, change: float | None) -> None:
    placer = Placer()
    placer.reservations([COURSE])
    assert placer.next_change(now) == change


def test_a_window_that_is_made_or_taken_back_counts_at_once() -> None:
    snapshot = lab([node("n1", "h200")], [])
    placer = Placer()
    placer.nodes(snapshot.nodes)
    placer.rules(snapshot.qos, order_of(snapshot, {}))
    placer.reservations([COURSE])
    placer.wait(waiting(1, time=3 * HOUR))
    assert placer.place(NOW) == []
    assert [promise.at for promise in placer.promises] == [COURSE.end]
    placer.reservations([])
    assert [start.job_id for start in placer.place(NOW)] == [1]
