"""The lending policy by example: one test for each rule that its users can see."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from lending_node import GIB, MEMORY, Node, check, device, lease, request, resident, snapshot, suspended, tenant

from carrel.core.domain.lease import (
    ContextPlace,
    Expire,
    LeaseState,
    Lend,
    Lending,
    LendingRules,
    LendingSnapshot,
    Lent,
    Request,
    Residency,
    Suspend,
    Tenant,
    Trim,
)
from carrel.core.policy.lend import lend
from carrel.core.policy.lend_reasons import LENDING_REASONS, ordinal

NOW = 1000.0


def decide(snap: LendingSnapshot, now: float = NOW) -> Lending:
    answer = lend(snap, now)
    check(snap, answer, now)
    assert all(one.reason.code in LENDING_REASONS for one in answer.queue)
    return answer


def test_a_free_device_is_lent_at_once() -> None:
    assert decide(snapshot(1, [tenant("a")], [request("a")])).lends == (Lend(request="r-a", devices=("gpu0",)),)


def test_who_has_a_state_gets_its_home_and_nothing_else() -> None:
    snap = snapshot(2, [resident("a", "gpu1"), tenant("b")], [request("a")], [lease("b", "gpu1", since=NOW)])
    answer = decide(snap)
    assert answer.lends == ()
    assert answer.queue[0].reason.code == "GpuInUse"


def test_a_state_in_host_memory_comes_back_on_another_device_like_its_home() -> None:
    cell = lease("b", "gpu0", since=NOW)
    away = suspended("a", size=6, portable=True)
    assert decide(snapshot(2, [away, tenant("b")], [request("a")], [cell])).lends == (Lend(request="r-a", devices=("gpu1",)),)
    at_home = decide(snapshot(2, [away, tenant("b")], [request("a")])).lends
    assert at_home == (Lend(request="r-a", devices=("gpu0",)),), "where it is as soon, it goes home"
    for there in (replace(away, portable=False), resident("a", portable=True)):
        answer = decide(snapshot(2, [there, tenant("b")], [request("a")], [cell]))
        assert (answer.lends, answer.queue[0].reason.code) == ((), "GpuInUse")
    kinds = [device(0, type="A100"), device(1, type="H100")]
    assert decide(snapshot(kinds, [away, tenant("b")], [request("a")], [cell])).lends == ()


def test_a_task_that_lends_gives_its_gpu_up_although_another_is_free() -> None:
    """So sessions stay spread over the GPUs, and do not gather where no task is."""
    task = resident("task", size=12)
    snap = snapshot(
        2, [suspended("a", size=6, portable=True), task], [request("a")], [lease("task", "gpu0", exclusive=True, lends=True)]
    )
    answer = decide(snap)
    assert [one.tenant for one in answer.suspends] == ["task"]


def test_a_state_goes_where_nobody_has_to_leave_for_it() -> None:
    others = [resident("b", size=12), tenant("c")]
    answer = decide(snapshot(2, [suspended("a", size=6, portable=True), *others], [request("a")]))
    assert answer.lends == (Lend(request="r-a", devices=("gpu1",)),)
    both = [resident("b", size=12), resident("c", "gpu1", size=10)]
    answer = decide(snapshot(2, [suspended("a", size=6, portable=True), *both], [request("a")]))
    assert answer.suspends == (Suspend(tenant="b", request="r-a"),), "where somebody has to, it is at home"


def test_where_its_home_is_in_use_another_state_makes_way_that_comes_back_anywhere_too() -> None:
    away, cell = suspended("a", size=6, portable=True), lease("b", "gpu0", since=NOW)
    idle = resident("c", "gpu1", size=12, portable=True)
    answer = decide(snapshot(2, [away, tenant("b"), idle], [request("a")], [cell]))
    assert answer.suspends == (Suspend(tenant="c", request="r-a"),)
    fixed = decide(snapshot(2, [away, tenant("b"), replace(idle, portable=False)], [request("a")], [cell]))
    assert (fixed.suspends, fixed.queue[0].reason.code) == ((), "GpuInUse"), "one with a home would wait for it in turn"
    both = decide(snapshot(2, [away, tenant("b"), idle], [request("a"), request("c")], [cell]))
    assert (both.suspends, both.lends) == ((), (Lend(request="r-c", devices=("gpu1",)),)), "who asks for its device has it"


def test_of_cells_that_go_on_anywhere_one_is_paused_whose_slice_is_over() -> None:
    away = suspended("a", size=6, portable=True)
    cells = [resident("b", size=12), resident("c", "gpu1", size=12, portable=True)]
    leases = [lease("b", "gpu0", since=NOW), lease("c", "gpu1", since=NOW - 100)]
    answer = decide(snapshot(2, [away, *cells], [request("a")], leases))
    assert [(one.tenant, one.pauses) for one in answer.suspends] == [("c", leases[1].id)]
    fixed = [cells[0], replace(cells[1], portable=False)]
    assert decide(snapshot(2, [away, *fixed], [request("a")], leases)).suspends == (), "it would wait for this very device"


def test_a_state_of_several_devices_keeps_those_that_are_free() -> None:
    state = {"gpu0": 6 * GIB, "gpu1": 4 * GIB}
    away = tenant("a", residency=Residency.SUSPENDED, home=("gpu0", "gpu1"), state=state, portable=True)
    busy = lease("b", "gpu1", since=NOW)
    answer = decide(snapshot(4, [away, tenant("b")], [request("a", gpus=2)], [busy]))
    assert answer.lends == (Lend(request="r-a", devices=("gpu0", "gpu2")),)
    few = decide(snapshot(2, [away, tenant("b")], [request("a", gpus=2)], [busy]))
    assert few.lends == ()


def test_residents_stay_while_there_is_room() -> None:
    snap = snapshot(1, [resident("a", size=6), resident("b", size=4)], [request("b")])
    answer = decide(snap)
    assert answer.lends
    assert not answer.suspends


def test_the_least_recently_used_state_makes_room_and_no_more_than_needed() -> None:
    others = [resident(name, size=4, last_used=used) for name, used in (("new", 30), ("old", 10), ("middle", 20))]
    answer = decide(snapshot(1, [*others, suspended("a", size=6)], [request("a")]))
    assert answer.suspends == (Suspend(tenant="old", request="r-a"),)
    assert answer.queue[0].reason.code == "GpuMoving"


def test_what_is_cheap_to_bring_back_for_its_idle_time_goes_first() -> None:
    """Both would make the room. The large one has lain idle a little longer, but would take four times as long to bring back."""
    large, small = resident("large", size=8, last_used=NOW - 40), resident("small", size=2, last_used=NOW - 30)
    assert decide(snapshot(1, [large, small, suspended("a", size=6)], [request("a")])).suspends == (
        Suspend(tenant="small", request="r-a"),
    )
    long_idle = replace(large, last_used=NOW - 3600)
    assert decide(snapshot(1, [long_idle, small, suspended("a", size=6)], [request("a")])).suspends == (
        Suspend(tenant="large", request="r-a"),
    )


def test_a_state_that_comes_back_needs_a_margin() -> None:
    """14 GiB and a margin of 1 GiB do not fit beside 2 GiB: the resident has to go first."""
    answer = decide(snapshot(1, [resident("b", size=2), suspended("a", size=14)], [request("a")]))
    assert answer.suspends == (Suspend(tenant="b", request="r-a"),)
    assert decide(snapshot(1, [suspended("a", size=16)], [request("a")])).lends, "a state that fills the device may come back"


def test_states_on_their_way_are_waited_for() -> None:
    leaving = replace(resident("b", size=9), residency=Residency.SUSPENDING)
    answer = decide(snapshot(1, [leaving, resident("c", size=2), suspended("a", size=8)], [request("a")]))
    assert not answer.suspends
    assert answer.queue[0].reason.code == "GpuMoving"


def test_what_cannot_move_is_in_the_way() -> None:
    answer = decide(snapshot(1, [resident("b", size=12, suspendable=False), suspended("a", size=8)], [request("a")]))
    assert not answer.suspends
    assert answer.queue[0].reason.code == "GpuNoRoom"


def test_programs_outside_of_the_lab_are_in_the_way() -> None:
    answer = decide(snapshot([device(0, foreign=12 * GIB)], [suspended("a", size=8)], [request("a")]))
    assert answer.queue[0].reason.code == "GpuNoRoom"
    assert "outside" in answer.queue[0].reason.message


def test_contexts_that_cannot_leave_are_named_as_what_is_in_the_way() -> None:
    def words(number: int, foreign: int) -> str:
        staying = [replace(suspended(f"s{i}", size=1), context={"gpu0": GIB}) for i in range(number)]
        answer = decide(snapshot([device(0, foreign=foreign * GIB)], [suspended("a", size=8), *staying], [request("a")]))
        assert answer.queue[0].reason.code == "GpuNoRoom"
        return answer.queue[0].reason.message

    assert "(the CUDA contexts of 12 idle notebooks fill it (12G))" in words(12, foreign=12)
    assert "(programs outside of the lab and the CUDA context of an idle notebook (1G) fill it)" in words(1, foreign=12)


def test_the_time_of_contexts_is_part_of_what_a_wait_takes() -> None:
    def about(*, context: bool) -> float | None:
        others = [replace(suspended("s", size=1), context={"gpu0": GIB}, context_leaves=True)] if context else []
        away = {"context": {"gpu0": GIB}, "context_at": ContextPlace.AWAY} if context else {}
        rules = LendingRules(move_rate=2.0 * GIB, context_time=3.0)
        node = device(0, foreign=GIB if context else 0)
        snap = snapshot([node], [resident("b", size=8), suspended("a", size=14, **away), *others], [request("a")], rules=rules)
        answer = decide(snap)
        assert len(answer.checkpoints) == (1 if context else 0)
        return answer.queue[0].estimate

    assert about(context=False) == 11.0
    assert about(context=True) == 17.0


def test_host_memory_is_a_limit() -> None:
    snap = snapshot(
        1,
        [resident("b", size=10), suspended("a", size=8)],
        [request("a")],
        host_used=8 * GIB,
        rules=LendingRules(host_memory=16 * GIB),
    )
    answer = decide(snap)
    assert not answer.suspends
    assert answer.queue[0].reason.code == "HostMemoryFull"


def test_owners_take_turns() -> None:
    """Ada asked first, three times; Bob has one turn after her first."""
    names = [("a1", "ada"), ("a2", "ada"), ("a3", "ada"), ("b1", "bob")]
    tenants = [tenant(name, owner) for name, owner in names]
    requests = [request(name, NOW - 10 + at) for at, (name, _owner) in enumerate(names)]
    answer = decide(snapshot(1, [*tenants, tenant("x")], requests, [lease("x", "gpu0", since=NOW)]))
    assert [one.request for one in answer.queue] == ["r-a1", "r-b1", "r-a2", "r-a3"]


def test_what_should_be_short_comes_before_what_should_be_long_but_not_for_ever() -> None:
    tenants = [tenant("long", typical=600.0), tenant("short", typical=2.0), tenant("new"), tenant("x")]
    busy = [lease("x", "gpu0", since=NOW)]

    def line(**asked: float) -> list[str]:
        answer = decide(snapshot(1, tenants, [request(name, at) for name, at in asked.items()], busy))
        return [one.request.removeprefix("r-") for one in answer.queue]

    assert line(long=NOW - 3, new=NOW - 2, short=NOW - 1) == ["short", "long", "new"]
    assert line(long=NOW - 70, short=NOW - 1) == ["long", "short"], "one time slice is all that shortness is worth"
    assert line(long=NOW - 57, short=NOW - 1) == ["short", "long"]


def test_who_waited_long_comes_before_who_holds_nothing() -> None:
    tenants = [tenant("a", "ada"), tenant("x", "ada"), tenant("b", "bob")]
    busy = [lease("x", "gpu0", since=NOW)]
    patient = decide(snapshot(1, tenants, [request("a", NOW - 100), request("b", NOW - 1)], busy))
    assert [one.request for one in patient.queue] == ["r-a", "r-b"]
    early = decide(snapshot(1, tenants, [request("a", NOW - 30), request("b", NOW - 1)], busy))
    assert [one.request for one in early.queue] == ["r-b", "r-a"]


def test_devices_are_kept_for_who_needs_several() -> None:
    tenants = [tenant("wide"), tenant("small"), tenant("x")]
    requests = [request("wide", NOW - 2, gpus=2), request("small", NOW - 1)]
    answer = decide(snapshot(2, tenants, requests, [lease("x", "gpu0", since=NOW)]))
    assert answer.lends == ()
    assert [one.reason.code for one in answer.queue] == ["GpuInUse", "GpuKept"]


def test_devices_are_not_kept_idle_for_as_long_as_a_task_runs() -> None:
    tenants = [tenant("wide"), tenant("small"), tenant("x")]
    requests = [request("wide", NOW - 2, gpus=2), request("small", NOW - 1)]
    answer = decide(snapshot(2, tenants, requests, [lease("x", "gpu0", since=NOW, exclusive=True)]))
    assert answer.lends == (Lend(request="r-small", devices=("gpu1",)),)


def test_a_task_has_its_devices_to_itself() -> None:
    snap = snapshot(1, [resident("b", size=1), tenant("task")], [request("task", devices=("gpu0",), exclusive=True)])
    assert decide(snap).suspends == (Suspend(tenant="b", request="r-task"),)


@pytest.mark.parametrize(("since", "paused"), [(NOW - 61, True), (NOW - 59, False)])
def test_a_long_cell_is_paused_when_its_slice_is_over(since: float, paused: bool) -> None:
    snap = snapshot(1, [resident("b"), tenant("a")], [request("a", NOW - 5)], [lease("b", "gpu0", since=since)])
    answer = decide(snap)
    assert answer.suspends == ((Suspend(tenant="b", request="r-a", pauses="l-b"),) if paused else ())
    assert answer.again_at == (None if paused else since + 60)


@pytest.mark.parametrize(("computed", "turn"), [(0.0, 60.0), (61.0, 61.0), (150.0, 150.0), (90_000.0, 180.0)])
def test_turns_of_cells_that_were_paused_grow_with_what_they_have_computed(computed: float, turn: float) -> None:
    def answer(since: float) -> Lending:
        tenants = [suspended("a", typical=5.0), resident("b")]
        paused = lease("a", "gpu0", state=LeaseState.PAUSED, used=computed)
        asked = request("a", NOW - 900, resumes="l-a")
        return decide(snapshot(1, tenants, [asked], [paused, lease("b", "gpu0", since=since)]))

    assert answer(NOW - turn).suspends
    early = answer(NOW - turn + 1)
    assert not early.suspends
    assert early.again_at == NOW + 1


def test_a_cell_that_begins_waits_for_one_time_slice_even_if_it_should_be_long() -> None:
    snap = snapshot(
        1, [resident("b"), tenant("a", typical=9000.0)], [request("a", NOW - 900)], [lease("b", "gpu0", since=NOW - 60)]
    )
    assert decide(snap).suspends


def test_nobody_is_paused_while_another_device_is_free() -> None:
    snap = snapshot(2, [resident("b"), tenant("a")], [request("a", NOW - 5)], [lease("b", "gpu0", since=NOW - 500)])
    answer = decide(snap)
    assert answer.lends == (Lend(request="r-a", devices=("gpu1",)),)
    assert not answer.suspends


@pytest.mark.parametrize(
    "held",
    [
        lease("b", "gpu0", exclusive=True),
        lease("b", "gpu0", state=LeaseState.HELD, held_until=NOW + 10),
    ],
)
def test_tasks_and_held_leases_are_not_paused(held: object) -> None:
    answer = decide(snapshot(1, [resident("b"), tenant("a")], [request("a", NOW - 5)], [held]))  # type: ignore[list-item]
    assert not answer.suspends
    assert not answer.expires


def test_no_slice_means_no_pause() -> None:
    snap = snapshot(1, [resident("b"), tenant("a")], [request("a")], [lease("b", "gpu0")], rules=LendingRules(time_slice=0))
    assert not decide(snap).suspends


def test_a_paused_cell_waits_behind_those_who_waited() -> None:
    tenants = [suspended("b"), tenant("a")]
    paused = lease("b", "gpu0", state=LeaseState.PAUSED)
    answer = decide(snapshot(1, tenants, [request("b", NOW, resumes="l-b"), request("a", NOW - 5)], [paused]))
    assert answer.lends == (Lend(request="r-a", devices=("gpu0",)),)


def test_nobody_is_paused_for_somebody_who_would_come_after_them() -> None:
    """Ada holds two more devices: paused now, Bob would be back before her request, and nothing would be won."""
    tenants = [resident("b", owner="bob"), tenant("a", "ada"), tenant("x", "ada"), tenant("y", "ada")]
    leases = [
        lease("b", "gpu0", since=NOW - 100),
        lease("x", "gpu1", since=NOW, exclusive=True),
        lease("y", "gpu2", since=NOW, exclusive=True),
    ]
    answer = decide(snapshot(3, tenants, [request("a", NOW - 5)], leases))
    assert not answer.suspends
    assert answer.again_at == NOW - 5 + 120


def test_a_held_lease_ends_when_others_wait_and_its_time_is_up() -> None:
    held = lease("b", "gpu0", state=LeaseState.HELD, held_until=NOW - 1)
    tenants = [resident("b", suspendable=False), tenant("a")]
    assert decide(snapshot(1, tenants, [], [held])).expires == ()
    assert decide(snapshot(1, tenants, [request("a")], [held])).expires == (Expire(lease="l-b", request="r-a"),)


def test_a_cordoned_device_is_not_lent_and_the_reason_is_said() -> None:
    snap = snapshot([device(0, withheld="cordoned: the driver hung twice")], [resident("a")], [request("a")])
    answer = decide(snap)
    assert answer.queue[0].reason.code == "GpuWithheld"
    assert "the driver hung twice" in answer.queue[0].reason.message


def test_the_line_for_the_user() -> None:
    tenants = [resident("x", owner="eve"), tenant("a", "ada"), tenant("b", "bob")]
    requests = [request("a", NOW - 2), request("b", NOW - 1)]
    answer = decide(snapshot(1, tenants, requests, [lease("x", "gpu0", since=NOW - 10)], typical_lease=30.0))
    first, second = answer.queue
    assert first.reason.message == "waiting for a GPU: 1st in line, about 20 s (a cell of another session computes)"
    assert second.reason.message == "waiting for a GPU: 2nd in line, about 50 s (others are ahead)"
    assert (first.estimate, second.estimate) == (20.0, 50.0)
    assert "eve" not in first.reason.message


@pytest.mark.parametrize(("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (12, "12th"), (21, "21st")])
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_two_long_cells_take_turns() -> None:
    """Two cells of ten minutes on one device: each gets its turns, which grow as both prove to be long, and both end."""
    node = Node([device(0)], LendingRules(time_slice=60))
    for name in ("a", "b"):
        node.join(name, name, MEMORY // 2)
        node.ask(name, 1, 600.0)
    turns = []
    while node.leases or node.requests:
        node.pass_time(1.0)
        turns.extend(one.tenant for one in node.leases.values() if one.state is LeaseState.ACTIVE)
    changes = sum(left != right for left, right in itertools.pairwise(turns))
    assert node.served == 2
    assert 7 <= changes <= 11


# --- room that cannot be had, caches, and an end of waiting ------------------------------------------------------------------


def test_who_waits_for_room_reads_since_when_what_helps_and_until_when() -> None:
    waits = replace(request("b", asked_at=NOW - 200), stuck_since=NOW - 120, until=NOW + 600)
    answer = lend(
        snapshot(1, [resident("a", size=14), suspended("b", size=8)], [waits], rules=LendingRules(host_memory=0, state_disk=GIB)),
        NOW,
    )
    (queued,) = answer.queue
    assert queued.reason.code == "HostMemoryFull"
    assert (
        "neither host memory nor the disk has room for the state that would have to make way; this has been so for 2 min"
        in queued.reason.message
    )
    assert "the end of a kernel with GPU state makes room; it stops waiting in 10 min" in queued.reason.message


TIGHT = LendingRules(host_memory=8 * GIB)


def test_caches_are_emptied_before_anybody_is_moved_or_waits() -> None:
    """18 of 24 GiB are state, as where a framework keeps in reserve what it has freed: nothing need move for 3 GiB more."""
    caching = resident("b", size=14, cache={"gpu0": 10 * GIB})
    answer = decide(snapshot(1, [caching, suspended("a", size=6)], [request("a")]))
    assert answer.trims == (Trim(tenant="b", request="r-a"),)
    assert answer.suspends == ()
    assert answer.queue[0].reason.code == "GpuMoving"
    waits = decide(snapshot(1, [replace(caching, trimming=True), suspended("a", size=6)], [request("a")]))
    assert (waits.trims, waits.suspends, waits.queue[0].reason.code) == ((), (), "GpuMoving")


def test_what_is_kept_in_reserve_is_not_counted_in_host_memory() -> None:
    caching = resident("b", size=14, cache={"gpu0": 7 * GIB})
    answer = decide(snapshot(1, [caching, suspended("a", size=12)], [request("a")], rules=TIGHT))
    assert answer.suspends == (Suspend(tenant="b", request="r-a"),), "7 GiB go to host memory, which has room for 8"


def test_what_one_keeps_in_reserve_is_there_for_ones_own_cell() -> None:
    own = resident("a", size=10, cache={"gpu0": 6 * GIB}, room=6 * GIB)
    answer = decide(snapshot(1, [own, resident("b", size=6)], [request("a")]))
    assert answer.lends
    assert not answer.suspends


def test_a_cell_of_unknown_appetite_begins_with_what_there_is_where_more_cannot_be_had() -> None:
    others = [resident("b", size=10), tenant("a")]
    assert decide(snapshot(1, others, [request("a")])).suspends, "half of the GPU, where that can be had"
    assert decide(snapshot(1, others, [request("a")], rules=TIGHT)).lends, "host memory cannot take 10 GiB; 6 GiB are free"
    full = decide(snapshot(1, [resident("b", size=15), tenant("a")], [request("a")], rules=TIGHT))
    assert full.queue[0].reason.code == "HostMemoryFull"


def test_a_cell_that_met_a_full_device_does_not_begin_with_less() -> None:
    answer = decide(snapshot(1, [resident("b", size=10), tenant("a", needs=MEMORY)], [request("a")], rules=TIGHT))
    assert answer.queue[0].stuck


def test_a_wait_that_nothing_helps_has_an_end_that_is_told() -> None:
    tenants = [resident("b", size=10), tenant("a", needs=10 * GIB)]

    def answer(until: float | None) -> Lending:
        return decide(snapshot(1, tenants, [request("a", until=until)], rules=TIGHT))

    assert answer(None).queue[0].stuck
    (soon,) = answer(NOW + 90).queue
    assert "host memory has no room" in soon.reason.message
    assert "it stops waiting in 1 min" in soon.reason.message
    assert answer(NOW + 90).again_at == NOW + 90
    (over,) = answer(NOW).gives_up
    assert (over.request, over.code) == ("r-a", "HostMemoryFull")
    assert answer(NOW).queue == ()


def test_who_waits_for_a_cell_whose_state_has_nowhere_to_go_waits_for_nothing() -> None:
    snap = snapshot(
        1,
        [resident("b", size=10), tenant("a", needs=10 * GIB), tenant("c", needs=2 * GIB)],
        [request("a", NOW - 5), request("c", NOW - 1)],
        [lease("b", "gpu0", since=NOW)],
        rules=TIGHT,
    )
    hopeless, next_ = decide(snap).queue
    assert (hopeless.reason.code, hopeless.stuck) == ("HostMemoryFull", True)
    assert (next_.reason.code, next_.stuck) == ("GpuInUse", False), "one that fits beside it is first in line for the GPU"


def test_a_cell_is_paused_only_where_it_can_come_back() -> None:
    """Paused, its 6 GiB are in host memory; to come back it needs the newcomer's 10 GiB to go there, too."""

    def paused(host: int) -> bool:
        tenants = [resident("b", size=6), tenant("a", needs=10 * GIB)]
        rules = LendingRules(host_memory=host * GIB)
        return bool(decide(snapshot(1, tenants, [request("a")], [lease("b", "gpu0", since=NOW - 90)], rules=rules)).suspends)

    assert paused(16)
    assert not paused(15)


def test_the_estimate_counts_the_moves() -> None:
    rules = LendingRules(move_rate=2.0 * GIB)
    answer = decide(snapshot(1, [resident("b", size=10), suspended("a", size=8)], [request("a")], rules=rules))
    assert answer.queue[0].estimate == 9.0
    assert "about 9 s" in answer.queue[0].reason.message


def test_the_estimate_is_the_turn_that_is_left_and_both_moves_each_at_its_own_rate() -> None:
    """b computes for 20 s more; 10 GiB go at 2 GiB/s, and a's 8 GiB come back at 4 GiB/s."""
    rules = LendingRules(move_rate=2.0 * GIB, back_rate=4.0 * GIB)
    leases = [lease("b", "gpu0", since=NOW - 10)]
    tenants = [resident("b", size=10), suspended("a", size=8)]
    answer = decide(snapshot(1, tenants, [request("a")], leases, rules=rules, typical_lease=30.0))
    assert answer.queue[0].estimate == 27.0
    beside = [resident("b", size=6), suspended("a", size=4)]
    answer = decide(snapshot(1, beside, [request("a")], leases, rules=rules, typical_lease=30.0))
    assert answer.queue[0].estimate == 21.0, "both fit: nothing leaves"


def test_a_job_that_has_not_begun_does_not_wait_for_a_cell_while_another_gpu_is_free() -> None:
    def answer(second: Tenant, elsewhere: bool = True, **more: object) -> Lending:
        asked = request("task", devices=("gpu0",), exclusive=True, elsewhere=elsewhere)
        tenants = [resident("b", suspendable=False), tenant("task"), second]
        return decide(snapshot(2, tenants, [asked], [lease("b", "gpu0", since=NOW)], **more))

    assert answer(tenant("c")).queue[0].stuck, "it is placed on the other one"
    assert not answer(tenant("c"), elsewhere=False).queue[0].stuck
    assert answer(resident("c", "gpu1", size=2)).queue[0].stuck, "what lies there can be moved"
    assert not answer(resident("c", "gpu1", size=2), rules=LendingRules(host_memory=GIB)).queue[0].stuck, "and here it cannot"


def test_a_job_that_has_not_begun_does_not_wait_behind_cells_that_are_ahead_while_another_gpu_is_free() -> None:
    """It is not the cell that computes that it waits for, but another that waits for that one, too."""

    def answer(devices: int, *, elsewhere: bool = True) -> Lending:
        asked = request("task", NOW - 1, devices=("gpu0",), exclusive=True, elsewhere=elsewhere)
        tenants = [resident("a"), resident("b"), tenant("task")]
        return decide(snapshot(devices, tenants, [request("a", NOW - 9), asked], [lease("b", "gpu0", since=NOW - 1)]))

    assert [one.stuck for one in answer(2).queue] == [False, True]
    assert [one.stuck for one in answer(2, elsewhere=False).queue] == [False, False]
    assert [one.stuck for one in answer(1).queue] == [False, False], "no other is there"


# --- tasks that give way to cells ---------------------------------------------------------------------------------------------

SHARING = LendingRules(task_turn=10, task_share=0.5, pause_in_place=True)


def lending_task(since: float = NOW - 100, began: float | None = None, computed: float = 0.0, **more: object) -> Lent:
    first = since if began is None else began
    return lease("task", "gpu0", since=since, began=first, used=computed, exclusive=True, lends=True, **more)


def waits_for(task: Lent, size: int = 12, rules: LendingRules = SHARING, **more: object) -> Lending:
    tenants = [resident("task", size=size), tenant("a", needs=8 * GIB)]
    return decide(snapshot(1, tenants, [request("a", NOW - 1)], [task], rules=rules, **more))


def test_a_task_gives_way_to_a_cell_when_it_has_had_its_turn() -> None:
    assert waits_for(lending_task(since=NOW - 10)).suspends == (Suspend(tenant="task", request="r-a", pauses="l-task"),)
    early = waits_for(lending_task(since=NOW - 7))
    assert not early.suspends
    assert early.again_at == NOW + 3
    assert early.queue[0].reason.message == (
        "waiting for a GPU: 1st in line, about 3 s (a task of another user has its turn, then lends the GPU)"
    )


def test_a_task_that_does_not_lend_is_waited_for() -> None:
    answer = waits_for(replace(lending_task(), lends=False))
    assert not answer.suspends
    assert answer.again_at is None
    assert waits_for(lending_task(), rules=LendingRules(task_share=1.0)).suspends, "its first turn is over"


def test_a_task_is_only_paused_where_both_fit() -> None:
    assert waits_for(lending_task(), size=6).suspends == (Suspend(tenant="task", request="r-a", pauses="l-task", in_place=True),)
    tenants = [resident("task", size=6), tenant("a", needs=8 * GIB)]
    paused = replace(lending_task(), state=LeaseState.PAUSED)
    waiting = request("task", NOW, devices=("gpu0",), exclusive=True, resumes="l-task")
    answer = decide(snapshot(1, tenants, [request("a", NOW - 1), waiting], [paused], rules=SHARING))
    assert answer.lends == (Lend(request="r-a", devices=("gpu0",)),)
    assert not answer.suspends


def test_a_task_keeps_its_share_of_a_long_cell() -> None:
    """Of 100 s it was paused for 60: the cell that was paused for it comes again when that is half of its time, in 20 s."""
    tenants = [resident("task", size=6), resident("a", size=4)]
    paused = lease("a", "gpu0", since=NOW - 80, used=60.0, state=LeaseState.PAUSED)
    waiting = request("a", NOW - 20, resumes="l-a")

    def answer(task: Lent, asks: Request = waiting) -> Lending:
        return decide(snapshot(1, tenants, [asks], [task, paused], rules=SHARING))

    lent = lending_task(since=NOW - 20, began=NOW - 100, computed=20.0)
    assert not answer(lent).suspends
    assert answer(lent).again_at == NOW + 20
    assert answer(replace(lent, since=NOW - 40, began=NOW - 120)).suspends
    assert answer(lent, request("a", NOW - 1)).suspends, "a cell that begins waits for the task's turn only"


def test_a_task_takes_back_no_more_than_its_share() -> None:
    """A cell computes in its place; the task has computed for 30 s, which is half of its time until 60 s after it began."""

    def answer(began: float, share: float = 0.5) -> Lending:
        task = replace(lending_task(since=began, began=began, computed=30.0), state=LeaseState.PAUSED)
        cell = lease("a", "gpu0", since=NOW - 500)
        waiting = request("task", NOW - 500, devices=("gpu0",), exclusive=True, resumes="l-task")
        tenants = [resident("task", size=6, elastic=True), resident("a", size=4)]
        return decide(snapshot(1, tenants, [waiting], [task, cell], rules=replace(SHARING, task_share=share)))

    assert [one.tenant for one in answer(NOW - 600).suspends] == ["a"]
    assert not answer(NOW - 50).suspends
    assert answer(NOW - 50).again_at == NOW + 10
    assert not answer(NOW - 600, share=0.0).suspends
    assert answer(NOW - 600, share=0.0).again_at is None


def test_a_task_that_has_had_its_share_keeps_no_gpu_from_a_cell() -> None:
    """It waits for its first GPU; its second is free meanwhile, for a cell that asks later."""
    task = replace(
        lending_task(since=NOW - 500, began=NOW - 500, computed=450.0), devices=("gpu0", "gpu1"), state=LeaseState.PAUSED
    )
    waiting = request("task", NOW - 50, devices=("gpu0", "gpu1"), exclusive=True, resumes="l-task")
    both = tenant("task", residency=Residency.RESIDENT, home=("gpu0", "gpu1"), state={"gpu0": 6 * GIB, "gpu1": 6 * GIB})
    tenants = [both, resident("a", size=4), resident("b", "gpu1", size=4)]
    leases = [task, lease("a", "gpu0", since=NOW - 20)]
    answer = decide(snapshot(2, tenants, [waiting, request("b", NOW - 1)], leases, rules=SHARING))
    assert answer.lends == (Lend(request="r-b", devices=("gpu1",)),)
    assert [one.request for one in answer.queue] == ["r-task"]


def test_a_task_that_is_owed_its_share_keeps_a_gpu_only_when_it_can_have_all_of_them() -> None:
    def answer(since: float) -> Lending:
        task = replace(lending_task(since=NOW - 500, computed=10.0), devices=("gpu0", "gpu1"), state=LeaseState.PAUSED)
        waiting = request("task", NOW - 490, devices=("gpu0", "gpu1"), exclusive=True, resumes="l-task")
        both = tenant("task", residency=Residency.RESIDENT, home=("gpu0", "gpu1"), state={"gpu0": 6 * GIB, "gpu1": 6 * GIB})
        tenants = [both, resident("a", size=4), resident("b", "gpu1", size=4)]
        leases = [task, lease("a", "gpu0", since=since)]
        return decide(snapshot(2, tenants, [waiting, request("b", NOW - 1)], leases, rules=SHARING))

    early = answer(NOW - 20)
    assert early.lends == (Lend(request="r-b", devices=("gpu1",)),), "the cell on gpu0 has 40 s of its slice left"
    assert early.again_at == NOW + 40
    late = answer(NOW - 60)
    assert not late.lends
    assert [one.tenant for one in late.suspends] == ["a"]


def test_a_session_begins_where_no_other_session_comes_back_to() -> None:
    """gpu0 is free, but another session's home; on gpu1 a task computes alone, and gives way."""
    task = replace(lending_task(), devices=("gpu1",))

    def answer(*tenants: Tenant, **more: object) -> Lending:
        return decide(snapshot(2, [resident("task", "gpu1", size=6), *tenants], [request("a", NOW - 1)], [task], **more))

    newcomer = tenant("a", needs=8 * GIB)
    crowded = answer(newcomer, resident("b", size=4), rules=SHARING)
    assert [one.tenant for one in crowded.suspends] == ["task"]
    assert not crowded.lends
    assert answer(newcomer, suspended("b", size=4), rules=SHARING).suspends, "also where its state is in host memory now"
    assert answer(newcomer, rules=SHARING).lends == (Lend(request="r-a", devices=("gpu0",)),)
    early = answer(newcomer, resident("b", size=4), rules=replace(SHARING, task_turn=1000))
    assert early.lends == (Lend(request="r-a", devices=("gpu0",)),), "nobody waits for a turn while a GPU is free"


def test_a_turn_is_worth_the_moves_that_it_costs() -> None:
    rules = replace(SHARING, move_rate=1.0 * GIB)
    assert not waits_for(lending_task(since=NOW - 95), size=12, rules=rules).suspends, "12 s away and 12 s back: 96 s"
    assert waits_for(lending_task(since=NOW - 97), size=12, rules=rules).suspends
    assert waits_for(lending_task(since=NOW - 11), size=6, rules=rules).suspends, "nothing is moved"


def test_a_task_goes_on_when_the_cell_is_over() -> None:
    paused = replace(lending_task(), state=LeaseState.PAUSED)
    waiting = request("task", NOW - 5, devices=("gpu0",), exclusive=True, resumes="l-task")

    def answer(task: Tenant, **more: object) -> Lending:
        return decide(snapshot(1, [task, resident("a", size=4)], [waiting], [paused], rules=SHARING, **more))

    assert answer(resident("task", size=6)).suspends == (Suspend(tenant="a", request="r-task"),), "it may need more than it has"
    assert answer(resident("task", size=6, elastic=True)).lends, "it asks for more when it needs it"
    held = snapshot(1, [resident("task", size=6), resident("a", size=4, suspendable=False)], [waiting], [paused], rules=SHARING)
    assert decide(held).lends, "what cannot move does not keep it from going on"
    coming = replace(resident("a", size=4), residency=Residency.RESUMING)
    while_it_comes = decide(snapshot(1, [resident("task", size=6), coming], [waiting], [paused], rules=SHARING))
    assert not while_it_comes.lends, "what is just coming can move once it is there"


@pytest.mark.parametrize(("foreign", "goes_on"), [(11, True), (12, False), (14, False)])
def test_a_task_goes_on_only_where_programs_of_others_leave_room_for_its_state(foreign: int, goes_on: bool) -> None:
    """They came while it was paused. Its state of 4 GiB would be lost on the way back."""
    paused = lease("task", "gpu0", state=LeaseState.PAUSED, exclusive=True, lends=True)
    asks = request("task", devices=("gpu0",), exclusive=True, resumes=paused.id)
    found = lend(snapshot([device(0, foreign=foreign * GIB)], [suspended("task", size=4)], [asks], [paused]), 100.0)
    assert [one.request for one in found.lends] == ([asks.id] if goes_on else [])
    if not goes_on:
        (waits,) = found.queue
        assert "programs outside of the lab fill it" in waits.reason.message


@pytest.mark.parametrize(("foreign", "goes_on"), [(1, True), (2, False)])
def test_a_task_goes_on_whose_state_and_own_context_fill_its_gpu(foreign: int, goes_on: bool) -> None:
    """No margin is left for others; what they have there already is in the way all the same."""
    paused = lease("task", "gpu0", state=LeaseState.PAUSED, exclusive=True, lends=True)
    asks = request("task", devices=("gpu0",), exclusive=True, resumes=paused.id)
    task = suspended("task", size=15, context={"gpu0": GIB})
    found = lend(snapshot([device(0, foreign=foreign * GIB)], [task], [asks], [paused]), 100.0)
    assert [one.request for one in found.lends] == ([asks.id] if goes_on else [])


def test_two_tasks_whose_states_and_contexts_fill_a_gpu_change_places() -> None:
    paused = lease("task", "gpu0", state=LeaseState.PAUSED, exclusive=True, lends=True)
    asks = request("task", devices=("gpu0",), exclusive=True, resumes=paused.id)
    tenants = [suspended("task", size=14, context={"gpu0": GIB}), resident("other", size=14, context={"gpu0": GIB})]
    found = lend(snapshot([device(0, foreign=2 * GIB)], tenants, [asks], [paused]), 100.0)
    assert [one.tenant for one in found.suspends] == ["other"]


def test_of_tasks_that_give_way_the_one_that_gives_up_the_fewest_gpus_does() -> None:
    wide = lease("wide", "gpu0", "gpu1", since=NOW - 500, began=NOW - 500, exclusive=True, lends=True)
    narrow = lease("narrow", "gpu2", since=NOW - 90, began=NOW - 90, exclusive=True, lends=True)
    big = tenant("wide", residency=Residency.RESIDENT, home=("gpu0", "gpu1"), state={"gpu0": 12 * GIB, "gpu1": 12 * GIB})
    tenants = [big, resident("narrow", "gpu2", size=12), tenant("a", needs=8 * GIB)]
    answer = decide(snapshot(3, tenants, [request("a", NOW - 1)], [wide, narrow], rules=SHARING))
    assert [one.tenant for one in answer.suspends] == ["narrow"]


def test_a_task_whose_state_has_nowhere_to_go_is_waited_for() -> None:
    answer = waits_for(lending_task(), rules=replace(SHARING, host_memory=8 * GIB))
    assert not answer.suspends
    assert answer.queue[0].reason.code == "HostMemoryFull"


def test_a_task_and_cells_share_a_gpu() -> None:
    """A task of ten minutes, and a cell of 5 s each 20 s beside it: all end, and the task takes less than a third longer."""
    node = Node([device(0)], replace(SHARING, pause_in_place=True))
    node.join("task", "eve", MEMORY // 4)
    node.join("a", "ada", MEMORY // 4)
    node.ask("task", 1, 600.0, exclusive=True, devices=("gpu0",), lends=True)
    began, asked = node.now, 0
    while node.leases or node.requests:
        if asked < 30 and node.now - began >= 20 * (asked + 1) and not any(one.tenant == "a" for one in node.requests.values()):
            node.ask("a", 1, 5.0)
            asked += 1
        node.pass_time(0.5)
    assert node.served == 31
    assert node.now - began < 800
    assert max(waited for name, waited in node.waited.items() if name != "000000") <= SHARING.task_turn
