"""Tasks whose walltime runs on while they are paused: the part of their time for which cells have their devices is bounded."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lending_node import GIB, Node, check, device, lease, request, resident, snapshot, suspended

from carrel.core.domain.lease import Expire, LeaseState, Lending, LendingRules, LendingSnapshot, Lent, Residency, Suspend
from carrel.core.policy.lend import lend
from carrel.core.policy.lend_tasks import LAST

NOW = 10_000.0
#: A fifth of its time, so that ten seconds of a cell are earned by forty of the task.
FIFTH = LendingRules(task_turn=10, most_lent=0.2, pause_in_place=True)
CELL = resident("a", size=4)


def decide(snap: LendingSnapshot, now: float = NOW) -> Lending:
    answer = lend(snap, now)
    check(snap, answer, now)
    return answer


def running(began: float, used: float = 0.0, since: float | None = None, **more: object) -> Lent:
    since = began if since is None else since
    return lease("task", "gpu0", since=since, began=began, used=used, exclusive=True, lends=True, **more)


def asked(task: Lent, rules: LendingRules = FIFTH, *, size: int = 6, **cell: object) -> Lending:
    tenants = [resident("task", size=size), replace(CELL, **cell)]
    return decide(snapshot(1, tenants, [request("a", NOW - 1)], [task], rules=rules))


def test_a_task_earns_what_it_lends() -> None:
    assert asked(running(NOW - 40)).suspends, "ten seconds in fifty"
    early = asked(running(NOW - 30))
    assert not early.suspends
    assert early.again_at == NOW + 10
    assert "has its turn, then lends the GPU" in early.queue[0].reason.message
    # It began 140 s ago and was paused for 20 of them.
    assert not asked(running(NOW - 139, used=100.0, since=NOW - 19)).suspends
    assert asked(running(NOW - 140, used=100.0, since=NOW - 20)).suspends


def test_where_nothing_may_be_lent_nothing_is() -> None:
    answer = asked(running(NOW - 9000), replace(FIFTH, most_lent=0.0))
    assert (answer.suspends, answer.again_at) == ((), None)


def test_moves_are_part_of_the_pause_and_a_turn_is_worth_them() -> None:
    rules = replace(FIFTH, move_rate=1.0 * GIB, pause_in_place=False, task_turn=1.0)
    # 16 s of moves (6 away, 6 back, 4 of the cell's state), and 64 for the cell: 320 s of the task earn them.
    assert not asked(running(NOW - 319), rules).suspends
    assert asked(running(NOW - 320), rules).suspends


def test_a_cell_that_could_not_be_paused_waits_for_the_end_of_the_task() -> None:
    answer = asked(running(NOW - 9000), suspendable=False)
    assert (answer.suspends, answer.again_at) == ((), None)
    assert not asked(running(NOW - 9000), replace(FIFTH, time_slice=0.0)).suspends, "where no cell is paused none is let in"


def test_a_task_is_left_alone_before_the_end_of_its_walltime() -> None:
    assert not asked(running(NOW - 9000, ends_by=NOW + LAST + 9)).suspends
    assert asked(running(NOW - 9000, ends_by=NOW + LAST + 10)).suspends


def away(*, used: float, began: float = NOW - 100, **more: object) -> Lent:
    return replace(running(began, **more), used=used, state=LeaseState.PAUSED)


def while_computing(task: Lent, *others: object, rules: LendingRules = FIFTH) -> Lending:
    """A cell computes for a moment; the task wants its device back."""
    cell = lease("a", "gpu0", since=NOW - 2)
    waiting = request("task", NOW - 10, devices=("gpu0",), exclusive=True, resumes="l-task")
    tenants = [resident("task", size=6), CELL, *others]
    asking = [waiting, *(request(one.id, NOW - 50) for one in others)]
    return decide(snapshot(1, tenants, asking, [task, cell], rules=rules))


def test_a_task_takes_its_device_back_in_time_whatever_the_cells_slice() -> None:
    assert while_computing(away(used=80.0)).suspends == (Suspend(tenant="a", request="r-task", pauses="l-a"),)
    early = while_computing(away(used=90.0))
    assert not early.suspends, "until 112.5 s, of which it computed for 90"
    assert early.again_at <= NOW + 12.5
    assert while_computing(away(used=99.0, ends_by=NOW + LAST)).suspends, "its walltime is nearly over"


def test_its_way_back_is_part_of_the_pause() -> None:
    rules = replace(FIFTH, move_rate=1.0 * GIB, pause_in_place=False)
    task, cell = away(used=90.0), lease("a", "gpu0", since=NOW - 2)
    waiting = request("task", NOW - 10, devices=("gpu0",), exclusive=True, resumes="l-task")
    answer = decide(snapshot(1, [suspended("task", size=6), CELL], [waiting], [task, cell], rules=rules))
    assert not answer.suspends
    assert answer.again_at <= NOW + 12.5 - (6 + 4)


def test_a_cell_that_begins_does_not_overtake_a_task_that_has_to_be_back_soon() -> None:
    def first(used: float, **cell: object) -> str:
        waiting = request("task", NOW - 10, devices=("gpu0",), exclusive=True, resumes="l-task")
        tenants = [resident("task", size=6, elastic=True), replace(CELL, **cell)]
        return decide(snapshot(1, tenants, [waiting, request("a", NOW - 1)], [away(used=used)], rules=FIFTH)).lends[0].request

    assert first(90.0) == "r-a"
    assert first(83.0) == "r-task", "3.75 s are not worth it"
    assert first(90.0, suspendable=False) == "r-task"


@pytest.mark.parametrize("turn", [0.0, 10.0])
@pytest.mark.parametrize("rate", [None, 1.0 * GIB])
@pytest.mark.parametrize("stays", [True, False])
def test_nobody_is_paused_for_nothing(turn: float, rate: float | None, stays: bool) -> None:
    """Whoever it is paused for has the device, at the very moment from which it may be paused."""
    rules = replace(FIFTH, task_turn=turn, move_rate=rate)
    other = resident("b", size=3, suspendable=not stays)
    task = running(NOW - 20_000, ends_by=NOW + 9000)
    asks, tenants = request("a", NOW - 30_000), [resident("task", size=4), other, replace(CELL, state={"gpu0": 2 * GIB})]
    first = decide(snapshot(1, tenants, [asks], [replace(task, began=NOW, since=NOW)], rules=rules)).again_at
    answer = decide(snapshot(1, tenants, [asks], [replace(task, began=NOW, since=NOW)], rules=rules), first)
    assert answer.suspends == (Suspend(tenant="task", request="r-a", pauses="l-task", in_place=True),)
    paused = replace(task, began=NOW, since=NOW, used=first - NOW, state=LeaseState.PAUSED)
    back = request("task", first, devices=("gpu0",), exclusive=True, resumes="l-task")
    assert [one.request for one in decide(snapshot(1, tenants, [asks, back], [paused], rules=rules), first).lends] == ["r-a"]


def test_who_holds_a_gpu_by_choice_gives_it_back_in_time() -> None:
    held = lease("a", "gpu0", since=NOW - 50, state=LeaseState.HELD, held_until=NOW + 3000, by_choice=True)
    waiting = request("task", NOW - 10, devices=("gpu0",), exclusive=True, resumes="l-task")
    tenants = [resident("task", size=6), CELL]
    answer = decide(snapshot(1, tenants, [waiting], [away(used=80.0), held], rules=FIFTH))
    assert answer.expires == (Expire(lease="l-a", request="r-task"),)


#: Seconds until a cell that pauses in place has stopped: as long as the calls to the GPU take that it has made. The policy
#: cannot know how long that is, and it comes on top of what it promises.
A_CALL = 0.01


def history(seed: int) -> float:
    """A task on one device and cells of all lengths; the largest part of its time for which it was paused, at any moment."""
    dice = random.Random(seed)
    moves, most = dice.random() < 0.5, dice.choice([0.05, 0.2, 0.5])
    rules = LendingRules(time_slice=20.0, task_turn=2.0, most_lent=most, pause_in_place=not moves, move_rate=1.0 * GIB)
    node = Node([device(0)], rules)
    node.join("task", "t", (dice.randrange(9, 14) if moves else 2) * GIB)
    node.ask("task", 1, 1e9, exclusive=True, devices=("gpu0",), lends=True)
    for number in range(4):
        node.join(f"c{number}", dice.choice("ab"), dice.randrange(1, 7 if moves else 4) * GIB)
    began, worst = node.now, 0.0
    while node.now < began + 3000:
        idle = set(node.tenants) - {one.tenant for one in [*node.requests.values(), *node.leases.values()]}
        if idle and dice.random() < 0.7:
            node.ask(dice.choice(sorted(idle)), 1, dice.choice([0.1, 3.0, 40.0, 4000.0]))
        next_ = node.settle().again_at
        step = dice.choice([1.0, 5.0, 60.0]) if next_ is None else min(next_ - node.now, 60.0)
        if any(held.pausing for held in node.leases.values()):
            step = A_CALL
        elif node.moving:
            step = max(sum(node.tenants[name].state.values()) for name in node.moving) / GIB
        else:
            active = [name for name, held in node.leases.items() if held.state is LeaseState.ACTIVE]
            todo = [node.todo[name] for name in active if name in node.todo]
            step = min([step, *(left for left in todo if left > 0)])
        node.pass_time(step + 1e-6)
        task = next(held for held in node.leases.values() if held.exclusive)
        back = task.state is LeaseState.ACTIVE and node.tenants["task"].residency is not Residency.RESUMING
        computed = task.used + (node.now - task.since if back else 0.0)
        if node.now > began + 100:
            worst = max(worst, (node.now - began - computed) / (node.now - began) - most)
    assert node.waited, "cells got their turns"
    return worst


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**9))
@example(2144)  # a cell that pauses in place just before the task has to be back
@example(2763)
def test_no_history_pauses_a_task_for_more_than_its_part(seed: int) -> None:
    assert history(seed) <= 1e-3


@pytest.mark.soak
def test_no_history_of_a_thousand_does() -> None:
    assert max(history(seed) for seed in range(1000)) <= 1e-3
