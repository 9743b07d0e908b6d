"""The lending policy by example: one test for each rule that its users can see."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from lending_node import GIB, MEMORY, Node, check, device, lease, request, resident, snapshot, suspended, tenant

from carrel.core.domain.lease import (
    ContextPlace,
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
)
from carrel.core.policy.lend import lend
from carrel.core.policy.lend_reasons import LENDING_REASONS, ordinal

NOW = 1000.0


def decide(snap: LendingSnapshot, now: float = NOW) -> Lending:
    answer = lend(snap, now)
    check(snap, answer, now)
    assert all(one.reason.code in LENDING_REASONS for one in answer.queue)
    return answer


def in_words(answer: Lending) -> list[str]:
    """All that is decided, and why the others wait."""
    return [
        *(f"lend {' '.join((one.request.removeprefix('r-'), *one.devices))}" for one in answer.lends),
        *(f"{'suspend' if one.pauses is None else 'pause'} {one.tenant}" for one in answer.suspends),
        *(f"trim {one.tenant}" for one in answer.trims),
        *(f"end {one.lease}" for one in answer.expires),
        *(f"{one.request.removeprefix('r-')} waits: {one.reason.code}{', stuck' if one.stuck else ''}" for one in answer.queue),
    ]


AWAY = suspended("a", size=6, portable=True)
TWO = tenant("a", residency=Residency.SUSPENDED, home=("gpu0", "gpu1"), state={"gpu0": 6 * GIB, "gpu1": 4 * GIB}, portable=True)
USED = [resident(name, size=4, last_used=at) for name, at in (("new", 30), ("old", 10), ("middle", 20))]
LEAVES = replace(resident("b", size=9), residency=Residency.SUSPENDING)
LARGE, SMALL = resident("large", size=8, last_used=NOW - 40), resident("small", size=2, last_used=NOW - 30)
CACHING = resident("b", size=14, cache={"gpu0": 10 * GIB})
BUSY = lease("b", "gpu0", since=NOW)
OVER = lease("b", "gpu0", state=LeaseState.HELD, held_until=NOW - 1)
WIDE = [request("wide", NOW - 2, gpus=2), request("small", NOW - 1)]
TIGHT = LendingRules(host_memory=8 * GIB)


#: A node, and what is decided there.
EXAMPLES = {
    "a free device is lent at once": (snapshot(1, [tenant("a")], [request("a")]), ["lend a gpu0"]),
    "who has a state gets its home and nothing else":
        (snapshot(2, [resident("a", "gpu1"), tenant("b")],
        [request("a")], [lease("b", "gpu1", since=NOW)]), ["a waits: GpuInUse"]),
    "a state in host memory comes back on another device like its home":
        (snapshot(2, [AWAY, tenant("b")], [request("a")], [BUSY]), ["lend a gpu1"]),
    "where it is as soon, it goes home": (snapshot(2, [AWAY, tenant("b")], [request("a")]), ["lend a gpu0"]),
    "what is not portable has one home":
        (snapshot(2, [replace(AWAY, portable=False), tenant("b")], [request("a")], [BUSY]), ["a waits: GpuInUse"]),
    "what is on a device has one home":
        (snapshot(2, [resident("a", portable=True), tenant("b")], [request("a")], [BUSY]), ["a waits: GpuInUse"]),
    "a device of another type is not like its home":
        (snapshot([device(0, type="A100"), device(1, type="H100")], [AWAY, tenant("b")],
        [request("a")], [BUSY]), ["a waits: GpuInUse"]),
    "a task that lends gives its GPU up although another is free: sessions stay spread over the GPUs":
        (snapshot(2, [AWAY, resident("task", size=12)],
        [request("a")], [lease("task", "gpu0", exclusive=True, lends=True)]), ["pause task", "a waits: GpuTask"]),
    "a state goes where nobody has to leave for it":
        (snapshot(2, [AWAY, resident("b", size=12), tenant("c")], [request("a")]), ["lend a gpu1"]),
    "where somebody has to, it is at home":
        (snapshot(2, [AWAY, resident("b", size=12), resident("c", "gpu1", size=10)],
        [request("a")]), ["suspend b", "a waits: GpuMoving"]),
    "a state of several devices keeps those that are free":
        (snapshot(4, [TWO, tenant("b")], [request("a", gpus=2)], [lease("b", "gpu1", since=NOW)]), ["lend a gpu0 gpu2"]),
    "a state of several devices waits for enough of them":
        (snapshot(2, [TWO, tenant("b")], [request("a", gpus=2)], [lease("b", "gpu1", since=NOW)]), ["a waits: GpuInUse"]),
    "residents stay while there is room":
        (snapshot(1, [resident("a", size=6), resident("b", size=4)], [request("b")]), ["lend b gpu0"]),
    "the least recently used state makes room and no more than needed":
        (snapshot(1, [*USED, suspended("a", size=6)], [request("a")]), ["suspend old", "a waits: GpuMoving"]),
    "of states that lie idle about as long the one that is cheap to bring back goes":
        (snapshot(1, [LARGE, SMALL, suspended("a", size=6)], [request("a")]), ["suspend small", "a waits: GpuMoving"]),
    "a dear one goes that has lain idle for long":
        (snapshot(1, [replace(LARGE, last_used=NOW - 3600), SMALL, suspended("a", size=6)],
        [request("a")]), ["suspend large", "a waits: GpuMoving"]),
    "a state that comes back needs a margin of 1 GiB":
        (snapshot(1, [resident("b", size=2), suspended("a", size=14)], [request("a")]), ["suspend b", "a waits: GpuMoving"]),
    "a state that fills the device may come back": (snapshot(1, [suspended("a", size=16)], [request("a")]), ["lend a gpu0"]),
    "states on their way are waited for":
        (snapshot(1, [LEAVES, resident("c", size=2), suspended("a", size=8)], [request("a")]), ["a waits: GpuMoving"]),
    "what cannot move is in the way":
        (snapshot(1, [resident("b", size=12, suspendable=False), suspended("a", size=8)],
        [request("a")]), ["a waits: GpuNoRoom, stuck"]),
    "programs outside of the lab are in the way":
        (snapshot([device(0, foreign=12 * GIB)], [suspended("a", size=8)], [request("a")]), ["a waits: GpuNoRoom, stuck"]),
    "host memory is a limit":
        (snapshot(1, [resident("b", size=10), suspended("a", size=8)],
        [request("a")], host_used=8 * GIB, rules=LendingRules(host_memory=16 * GIB)), ["a waits: HostMemoryFull, stuck"]),
    "devices are kept for who needs several":
        (snapshot(2, [tenant("wide"), tenant("small"), tenant("x")],
        WIDE, [lease("x", "gpu0", since=NOW)]), ["wide waits: GpuInUse", "small waits: GpuKept"]),
    "devices are not kept idle for as long as a task runs":
        (snapshot(2, [tenant("wide"), tenant("small"), tenant("x")],
        WIDE, [lease("x", "gpu0", since=NOW, exclusive=True)]), ["lend small gpu1", "wide waits: GpuTask"]),
    "a task has its devices to itself":
        (snapshot(1, [resident("b", size=1), tenant("task")],
        [request("task", devices=("gpu0",), exclusive=True)]), ["suspend b", "task waits: GpuMoving"]),
    "a cell that begins waits for one time slice even if it should be long":
        (snapshot(1, [resident("b"), tenant("a", typical=9000.0)],
        [request("a", NOW - 900)], [lease("b", "gpu0", since=NOW - 60)]), ["pause b", "a waits: GpuInUse"]),
    "nobody is paused while another device is free":
        (snapshot(2, [resident("b"), tenant("a")],
        [request("a", NOW - 5)], [lease("b", "gpu0", since=NOW - 500)]), ["lend a gpu1"]),
    "a task that does not lend is not paused":
        (snapshot(1, [resident("b"), tenant("a")],
        [request("a", NOW - 5)], [lease("b", "gpu0", exclusive=True)]), ["a waits: GpuTask"]),
    "a lease that is held is not paused":
        (snapshot(1, [resident("b"), tenant("a")],
        [request("a", NOW - 5)], [lease("b", "gpu0", state=LeaseState.HELD, held_until=NOW + 10)]), ["a waits: GpuHeld"]),
    "a lease that was held ends when others wait":
        (snapshot(1, [resident("b", suspendable=False), tenant("a")], [request("a")], [OVER]), ["end l-b", "a waits: GpuHeld"]),
    "and not before": (snapshot(1, [resident("b", suspendable=False), tenant("a")], [], [OVER]), []),
    "no slice means no pause":
        (snapshot(1, [resident("b"), tenant("a")],
        [request("a")], [lease("b", "gpu0")], rules=LendingRules(time_slice=0)), ["a waits: GpuInUse"]),
    "a paused cell waits behind those who waited":
        (snapshot(1, [suspended("b"), tenant("a")],
        [request("b", NOW, resumes="l-b"), request("a", NOW - 5)], [lease("b", "gpu0", state=LeaseState.PAUSED)]),
        ["lend a gpu0", "b waits: GpuKept"]),
    "a cordoned device is not lent":
        (snapshot([device(0, withheld="cordoned: the driver hung twice")], [resident("a")],
        [request("a")]), ["a waits: GpuWithheld, stuck"]),
    "caches are emptied before anybody is moved or waits":
        (snapshot(1, [CACHING, suspended("a", size=6)], [request("a")]), ["trim b", "a waits: GpuMoving"]),
    "and that is waited for":
        (snapshot(1, [replace(CACHING, trimming=True), suspended("a", size=6)], [request("a")]), ["a waits: GpuMoving"]),
    "what is kept in reserve is not counted in host memory":
        (snapshot(1, [resident("b", size=14, cache={"gpu0": 7 * GIB}), suspended("a", size=12)],
        [request("a")], rules=TIGHT), ["suspend b", "a waits: GpuMoving"]),
    "what one keeps in reserve is there for one's own cell":
        (snapshot(1, [resident("a", size=10, cache={"gpu0": 6 * GIB}, room=6 * GIB), resident("b", size=6)],
        [request("a")]), ["lend a gpu0"]),
    "a cell of unknown appetite gets half of the GPU, where that can be had":
        (snapshot(1, [resident("b", size=10), tenant("a")], [request("a")]), ["suspend b", "a waits: GpuMoving"]),
    "where it cannot, it begins with what there is":
        (snapshot(1, [resident("b", size=10), tenant("a")], [request("a")], rules=TIGHT), ["lend a gpu0"]),
    "but not with next to nothing":
        (snapshot(1, [resident("b", size=15), tenant("a")], [request("a")], rules=TIGHT), ["a waits: HostMemoryFull, stuck"]),
    "a cell that met a full device does not begin with less":
        (snapshot(1, [resident("b", size=10), tenant("a", needs=MEMORY)],
        [request("a")], rules=TIGHT), ["a waits: HostMemoryFull, stuck"]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_decided(name: str) -> None:
    node, decided = EXAMPLES[name]
    assert in_words(decide(node)) == decided


def test_what_is_in_the_way_is_named() -> None:
    for room, said in (
        (device(0, withheld="the driver hung twice"), "driver hung twice"),
        (device(0, foreign=12 * GIB), "outside"),
    ):
        assert said in decide(snapshot([room], [suspended("a", size=8)], [request("a")])).queue[0].reason.message


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
