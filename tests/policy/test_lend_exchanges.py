"""States that change places piece by piece: who comes in while whom leaves, and what a waiting cell is told of it."""

from __future__ import annotations

import pytest
from lending_node import GIB, device, lease, request, resident, snapshot, suspended, tenant

from carrel.core.domain.lease import Exchange, LeaseState, Lending, LendingRules, LendingSnapshot, Residency, Tenant
from carrel.core.policy.lend import lend

NOW = 1000.0
COMES = suspended("a", size=10, in_pieces=True)


def decide(node: LendingSnapshot) -> Lending:
    return lend(node, NOW)


def leaves(name: str, size: int, *, in_pieces: bool = True, home: str = "gpu0") -> Tenant:
    state = {home: size * GIB}
    return tenant(name, residency=Residency.SUSPENDING, home=(home,), state=state, in_pieces=in_pieces)


def test_a_state_comes_in_while_the_other_leaves() -> None:
    """10 and 12 GiB on a device of 16, which nobody has before both moves are done."""
    answer = decide(snapshot(1, [leaves("b", 12), COMES], [request("a")]))
    assert answer.exchanges == (Exchange(tenant="a", request="r-a"),)
    assert (answer.lends, answer.suspends, answer.queue[0].reason.code) == ((), (), "GpuMoving")


def test_also_while_the_other_is_stopped_in_the_middle_of_a_cell_or_task() -> None:
    for exclusive in (False, True):
        lent = lease("b", "gpu0", since=NOW - 90, exclusive=exclusive, lends=exclusive)
        assert decide(snapshot(1, [leaves("b", 12), COMES], [request("a")], [lent])).exchanges


def test_a_task_that_comes_back_to_its_device_does_so_too() -> None:
    task = lease("a", "gpu0", since=NOW - 90, state=LeaseState.PAUSED, exclusive=True, lends=True)
    back = request("a", exclusive=True, resumes="l-a", devices=("gpu0",))
    assert decide(snapshot(1, [leaves("b", 12), COMES], [back], [task])).exchanges
    assert not decide(snapshot(1, [leaves("b", 12), resident("c", size=1), COMES], [back], [task])).exchanges


@pytest.mark.parametrize(
    "there",
    [
        [leaves("b", 12, in_pieces=False)],  # it is not stopped yet, or the driver moves it, as a whole
        [leaves("b", 2), resident("c", size=8, in_pieces=True)],  # that has to leave too, and does not yet
        [leaves("b", 6), leaves("c", 6, in_pieces=False)],
        [resident("b", size=12, in_pieces=True)],
    ],
)
def test_not_before_all_who_make_room_leave_piece_by_piece(there: list[Tenant]) -> None:
    assert not decide(snapshot(1, [*there, COMES], [request("a")])).exchanges


def test_not_by_the_drivers_way_and_not_beside_who_computes() -> None:
    whole = suspended("a", size=10)
    assert not decide(snapshot(1, [leaves("b", 12), whole], [request("a")])).exchanges
    computes = [lease("c", "gpu0", since=NOW - 1)]
    assert not decide(snapshot(1, [leaves("b", 12), resident("c", size=1), COMES], [request("a")], computes)).exchanges


def test_what_stays_and_what_strangers_have_leaves_room_for_all_of_it() -> None:
    """10 GiB and the margin of 1 GiB on a device of 16."""
    for size, fits in ((5, True), (6, False)):
        beside = [leaves("b", 16 - size), resident("c", size=size, in_pieces=True), COMES]
        assert bool(decide(snapshot(1, beside, [request("a")])).exchanges) is fits
        strangers = [device(0, foreign=size * GIB)]
        assert bool(decide(snapshot(strangers, [leaves("b", 16 - size), COMES], [request("a")])).exchanges) is fits


def test_it_is_for_the_first_in_line_alone() -> None:
    others = suspended("c", size=9, in_pieces=True)
    answer = decide(snapshot(1, [leaves("b", 12), COMES, others], [request("a", 1.0), request("c", 2.0)]))
    assert [one.tenant for one in answer.exchanges] == ["a"]


def test_who_asks_for_the_device_meanwhile_waits_for_the_moves_and_is_not_told_that_there_is_no_room() -> None:
    coming = tenant("a", residency=Residency.RESUMING, home=("gpu0",), state={"gpu0": 10 * GIB}, in_pieces=True)
    for asks in (suspended("c", size=9), tenant("c", needs=9 * GIB)):
        answer = decide(snapshot(1, [leaves("b", 12), coming, asks], [request("c")]))
        assert (answer.queue[0].reason.code, answer.queue[0].stuck) == ("GpuMoving", False)


def test_the_estimate_of_an_exchange_is_the_longer_of_both_moves_or_what_both_at_once_took() -> None:
    def estimate(rate: float | None, *, in_pieces: bool = True) -> float | None:
        rules = LendingRules(move_rate=2.0 * GIB, back_rate=4.0 * GIB, exchange_rate=rate)
        there = resident("b", size=12, in_pieces=in_pieces)
        idle = decide(snapshot(1, [there, COMES], [request("a")], rules=rules)).queue[0].estimate
        computing = [lease("b", "gpu0", since=NOW - 10)]
        busy = decide(snapshot(1, [there, COMES], [request("a")], computing, rules=rules, typical_lease=30.0)).queue[0].estimate
        assert busy == 20.0 + idle
        return idle

    assert estimate(None) == 6.0
    assert estimate(2.2 * GIB) == pytest.approx(10.0)
    assert estimate(9.0 * GIB) == 6.0, "no move is faster than it is alone"
    assert estimate(2.2 * GIB, in_pieces=False) == 8.5
