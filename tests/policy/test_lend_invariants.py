"""What holds of every answer of the lending policy, whatever the node looks like; and that everybody is served in the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lending_node import GIB, MEMORY, Node, check

from carrel.core.domain.lease import DeviceRoom, LeaseState, LendingRules, LendingSnapshot, Lent, Request, Residency, Tenant
from carrel.core.policy.lend import lend
from support.examples import examples

NOW = 10_000.0
_AWAY = (Residency.SUSPENDED, Residency.SPILLING, Residency.SPILLED)
times = st.floats(NOW - 300, NOW, allow_nan=False).map(lambda value: round(value, 1))
sizes = st.integers(0, 9).map(lambda number: number * GIB)


@st.composite
def nodes(draw: Callable[..., Any]) -> LendingSnapshot:
    """Any node that a broker could show: states that fit their devices, a device in at most one lease."""
    count = draw(st.integers(1, 4))
    devices = [
        DeviceRoom(
            uuid=f"gpu{number}",
            memory=MEMORY,
            type=draw(st.sampled_from(["A100", "A100", "H100"])),
            foreign=draw(st.sampled_from([0, 0, 0, GIB, 12 * GIB])),
            withheld=draw(st.sampled_from([None, None, None, None, "cordoned"])),
        )
        for number in range(count)
    ]
    uuids = [one.uuid for one in devices]
    tenants: dict[str, Tenant] = {}
    free = set(uuids)
    leases: list[Lent] = []
    requests: list[Request] = []
    for number in range(draw(st.integers(0, 9))):
        name = f"t{number}"
        residency = draw(st.sampled_from([one for one in Residency if one is not Residency.LOST]))
        home = () if residency is Residency.NONE else tuple(draw(st.permutations(uuids))[: draw(st.integers(1, count))])
        tenants[name] = Tenant(
            id=name,
            owner=draw(st.sampled_from("abc")),
            residency=residency,
            home=home,
            state=(state := {uuid: draw(sizes) for uuid in home}),
            cache={uuid: draw(st.integers(0, 3)) * size // 4 for uuid, size in state.items() if residency is Residency.RESIDENT},
            trimming=residency is Residency.RESIDENT and draw(st.booleans()),
            room=draw(st.sampled_from([0, GIB, MEMORY])),
            needs=draw(st.sampled_from([0, 0, GIB, 12 * GIB])),
            suspendable=draw(st.booleans()),
            spillable=draw(st.booleans()),
            straight=residency in (Residency.SUSPENDING, Residency.SPILLING) and draw(st.booleans()),
            elastic=draw(st.booleans()),
            portable=draw(st.booleans()),
            last_used=draw(times),
            typical=draw(st.sampled_from([None, 2.0, 100.0, 9000.0])),
        )
        where = home or (draw(st.sampled_from(uuids)),)
        kind = draw(st.sampled_from(["lease", "paused", "ask", "ask", "both", "nothing"]))
        if kind in ("lease", "both") and free.issuperset(where) and residency not in _AWAY:
            free -= set(where)
            state = draw(st.sampled_from([LeaseState.ACTIVE, LeaseState.ACTIVE, LeaseState.HELD]))
            leases.append(
                Lent(
                    id=f"l{number}",
                    tenant=name,
                    devices=where,
                    state=state,
                    since=draw(times),
                    exclusive=state is LeaseState.ACTIVE and draw(st.booleans()),
                    lends=draw(st.booleans()),
                    began=draw(times.map(lambda value: value - 300)),
                    used=draw(st.sampled_from([0.0, 10.0, 200.0])),
                    ends_by=draw(st.sampled_from([None, NOW + 30, NOW + 9000])),
                    held_until=draw(times.map(lambda value: value + 100)) if state is LeaseState.HELD else None,
                )
            )
        paused = kind == "paused" and residency in (*_AWAY, Residency.RESIDENT)
        task = draw(st.booleans())
        if paused:
            away = Lent(
                id=f"l{number}", tenant=name, devices=home, state=LeaseState.PAUSED, since=draw(times), exclusive=task, lends=task
            )
            leases.append(away)
        if kind in ("ask", "both") or paused:
            exclusive = task if paused else residency is Residency.NONE and draw(st.booleans())
            requests.append(
                Request(
                    id=f"r{number}",
                    tenant=name,
                    gpus=len(home) or draw(st.integers(1, count)),
                    devices=where if exclusive else (),
                    asked_at=draw(times),
                    exclusive=exclusive,
                    resumes=f"l{number}" if paused else None,
                    until=None if exclusive or paused else draw(st.sampled_from([None, NOW - 1, NOW + 60])),
                )
            )
    return LendingSnapshot(
        devices=devices,
        tenants=tenants,
        requests=sorted(requests, key=lambda one: one.asked_at),
        leases=leases,
        host_used=draw(sizes),
        disk_used=draw(sizes),
        rules=LendingRules(
            time_slice=draw(st.sampled_from([0.0, 60.0])),
            host_memory=draw(st.sampled_from([None, 20 * GIB])),
            state_disk=draw(st.sampled_from([0, 12 * GIB, 60 * GIB])),
            past_host=draw(st.booleans()),
            task_share=draw(st.sampled_from([0.0, 0.5, 1.0])),
            task_turn=draw(st.sampled_from([0.0, 30.0])),
            most_lent=draw(st.sampled_from([1.0, 0.2, 0.0])),
            pause_in_place=draw(st.booleans()),
            move_rate=draw(st.sampled_from([None, 1.0 * GIB])),
        ),
        typical_lease=draw(st.sampled_from([None, 5.0])),
    )


@settings(max_examples=examples(200))
@given(nodes())
def test_every_answer_is_sound(snap: LendingSnapshot) -> None:
    check(snap, lend(snap, NOW), NOW)


@settings(max_examples=examples(50))
@given(nodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_sequences_does_not_matter(snap: LendingSnapshot, dice: random.Random) -> None:
    def shuffled(items: Any) -> list[Any]:
        return dice.sample(list(items), len(items))

    tenants = dict(shuffled(snap.tenants.items()))
    other = LendingSnapshot(
        devices=shuffled(snap.devices),
        tenants=tenants,
        requests=shuffled(snap.requests),
        leases=shuffled(snap.leases),
        host_used=snap.host_used,
        rules=snap.rules,
        typical_lease=snap.typical_lease,
    )
    assert lend(other, NOW) == lend(snap, NOW)


@settings(max_examples=examples(200))
@given(nodes())
def test_no_state_is_moved_that_need_not_be(snap: LendingSnapshot) -> None:
    """Without any one of the suspensions for a cell on one device, the room would not be there."""
    answer = lend(snap, NOW)
    requests = {one.id: one for one in snap.requests}
    for waiting in {one.request for one in answer.suspends if one.pauses is None}:
        asked = requests[waiting]
        who = snap.tenants[asked.tenant]
        moved = [snap.tenants[one.tenant] for one in answer.suspends if one.request == waiting]
        homes = {uuid for one in moved for uuid in one.home}
        if asked.exclusive or len(who.home) != 1 or len(homes) != 1:
            continue
        (uuid,) = who.home
        (room,) = [one for one in snap.devices if one.uuid == uuid]
        on_device = (Residency.RESIDENT, Residency.RESUMING)
        staying = sum(one.state.get(uuid, 0) for one in snap.tenants.values() if one.residency in on_device and one.id != who.id)
        size, possible = who.state[uuid], room.memory - room.foreign
        margin = min(snap.rules.margin, room.memory - size) if who.residency in _AWAY else 0
        need = min(size + margin + who.room, possible)
        gained = sum(one.state[uuid] for one in moved)
        if asked.id in {one.request for one in answer.trims} or any(one.cache for one in snap.tenants.values()):
            continue
        assert all(possible - staying + gained - one.state[uuid] < need for one in moved)


@settings(max_examples=examples(40))
@given(st.integers(0, 10**9), st.sampled_from([0.0, 20.0]), st.integers(1, 3))
def test_everybody_is_served_in_the_end(seed: int, time_slice: float, count: int) -> None:
    """Sessions and tasks at random; newcomers keep coming for a while; in the end nobody waits."""
    dice = random.Random(seed)
    devices = [DeviceRoom(uuid=f"gpu{number}", memory=MEMORY) for number in range(count)]
    rules = LendingRules(time_slice=time_slice, pause_in_place=dice.random() < 0.5, task_turn=dice.choice([1.0, 10.0]))
    node = Node(devices, rules)
    for number in range(8):
        node.join(f"t{number}", dice.choice("abc"), dice.randrange(1, 12) * GIB, portable=seed % 2 == 0)
    asked = 0
    for _ in range(150):
        idle = [
            name
            for name in node.tenants
            if not any(one.tenant == name for one in [*node.requests.values(), *node.leases.values()])
        ]
        if idle and dice.random() < 0.6:
            name = dice.choice(idle)
            gpus = len(node.tenants[name].home) or dice.choice([1, 1, 1, count])
            task = not node.tenants[name].home and dice.random() < 0.2
            uuids = [one.uuid for one in devices]
            node.ask(
                name,
                gpus,
                dice.choice([1.0, 5.0, 90.0]),
                exclusive=task,
                devices=tuple(dice.sample(uuids, gpus)) if task else (),
                lends=task and dice.random() < 0.7,
            )
            asked += 1
        node.pass_time(dice.choice([0.5, 2.0, 10.0]))
    for _ in range(4000):
        if not node.requests and not node.leases:
            break
        node.pass_time(2.0)
    assert not node.requests
    assert node.served == asked
    # Nobody was overtaken for ever: at most everybody else's cells and slices, several times over.
    assert max(node.waited.values()) <= 8 * 200


def live(seed: int, steps: int) -> Node:
    """A node whose host memory cannot take every state. Cells come and go, and nobody looks at the clock but the policy."""
    dice = random.Random(seed)
    count, time_slice, hold_time = dice.choice([1, 1, 2]), dice.choice([5.0, 20.0]), dice.choice([30.0, 90.0])
    host = dice.choice([0, 8, 12, 24, 40]) * GIB
    devices = [DeviceRoom(uuid=f"gpu{number}", memory=MEMORY) for number in range(count)]
    rules = LendingRules(
        time_slice=time_slice,
        host_memory=host,
        state_disk=dice.choice([0, 0, 20, 100]) * GIB,
        past_host=dice.random() < 0.5,
        task_turn=5.0,
        pause_in_place=dice.random() < 0.5,
    )
    node = Node(devices, rules, hold_time=hold_time)
    if dice.random() < 0.5:
        node.join("task", "d", dice.randrange(1, 14) * GIB)
        node.ask("task", 1, 150.0, exclusive=True, devices=("gpu0",), lends=True)
    for number in range(dice.randrange(2, 7)):
        size = dice.randrange(1, 14)
        portable = seed % 2 == 0
        node.join(f"t{number}", dice.choice("abc"), size * GIB, cache=dice.randrange(size) * GIB, portable=portable)
    for _ in range(steps):
        busy = {one.tenant for one in [*node.requests.values(), *node.leases.values()]}
        idle = [name for name in node.tenants if name not in busy and name != "task"]
        if idle and dice.random() < 0.5:
            node.ask(dice.choice(idle), 1, dice.choice([1.0, 5.0, 90.0]))
        step = dice.choice([0.5, 2.0, 7.0])
        node.pass_time(step)
        # Whoever comes next is let in by the next step, and a state is moved in one.
        moves = 4 if not rules.state_disk else 8
        assert node.watch() <= time_slice + hold_time + moves * 7.0, "a GPU is free, and nobody runs"
    return node


@settings(max_examples=30, deadline=None)
@example(4471324, False)  # who lies in host memory, and who is sent there, have to go on together
@given(st.integers(0, 10**9), st.booleans())
def test_nobody_gives_up_where_the_disk_takes_every_state(seed: int, past_host: bool) -> None:
    everybody_takes_turns(seed, past_host)


@pytest.mark.soak
def test_nobody_gives_up_in_three_thousand_histories() -> None:
    for seed in range(3000):
        everybody_takes_turns(seed, past_host=seed % 2 == 0)


def everybody_takes_turns(seed: int, past_host: bool) -> None:
    """Host memory has room for one state (or, past it, for none), the disk for all."""
    dice = random.Random(seed)
    sizes = [dice.randrange(6, 13) * GIB for _ in range(dice.randrange(2, 6))]
    rules = LendingRules(
        time_slice=dice.choice([0.0, 5.0]),
        host_memory=dice.choice([0, 5, 14] if past_host else [max(sizes) // GIB, 20]) * GIB,
        state_disk=2 * sum(sizes),
        past_host=past_host,
    )
    node = Node([DeviceRoom(uuid="gpu0", memory=MEMORY)], rules, hold_time=30.0)
    for number, size in enumerate(sizes):
        node.join(f"t{number}", dice.choice("abc"), size)
    for _ in range(60):
        busy = {one.tenant for one in [*node.requests.values(), *node.leases.values()]}
        if (idle := [name for name in node.tenants if name not in busy]) and dice.random() < 0.6:
            node.ask(dice.choice(idle), 1, dice.choice([1.0, 5.0, 20.0]))
        node.pass_time(dice.choice([0.5, 2.0, 7.0]))
    for _ in range(300):
        node.pass_time(2.0)
    assert not node.requests
    assert not node.leases
    assert not node.gave_up


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_whenever_a_gpu_is_free_and_somebody_waits_somebody_runs(seed: int) -> None:
    live(seed, 120)


def test_of_several_whom_nothing_helps_each_waits_for_its_own_time() -> None:
    """No host memory at all: two states fill the GPU, and nobody else can begin."""
    rules = LendingRules(host_memory=0)
    node = Node([DeviceRoom(uuid="gpu0", memory=MEMORY)], rules, hold_time=30.0)
    for name, size in (("small", 3), ("large", 12)):
        node.join(name, name, size * GIB)
        node.ask(name, 1, 1.0)
        node.pass_time(2.0)
    for name in "abc":
        node.join(name, name, 8 * GIB)
        node.ask(name, 1, 1.0)
        node.pass_time(20.0)
    assert len(node.gave_up) == 2
    assert node.watch() < 30.0, "who is left has not waited for so long"
    node.pass_time(20.0)
    assert len(node.gave_up) == 3


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_somebody_runs_in_ten_thousand_histories() -> None:
    nodes = [live(seed, 80) for seed in range(10_000)]
    assert any(node.gave_up for node in nodes)
    assert sum(node.served for node in nodes) > 10_000


class Lending(RuleBasedStateMachine):
    """Any order of asking, computing, moving and dying; `Node` checks every answer and that no device is lent twice."""

    @initialize(
        count=st.integers(1, 3),
        time_slice=st.sampled_from([0.0, 5.0]),
        host=st.sampled_from([None, 10 * GIB, 40 * GIB]),
        in_place=st.booleans(),
        disk=st.sampled_from([0, 40 * GIB]),
        past_host=st.booleans(),
    )
    def begin(self, count: int, time_slice: float, host: int | None, in_place: bool, disk: int, past_host: bool) -> None:
        devices = [DeviceRoom(uuid=f"gpu{number}", memory=MEMORY) for number in range(count)]
        rules = LendingRules(
            time_slice=time_slice,
            host_memory=host,
            task_turn=2.0,
            pause_in_place=in_place,
            state_disk=disk,
            past_host=past_host,
        )
        self.node = Node(devices, rules)
        self.count = count

    @rule(owner=st.sampled_from("abc"), size=st.integers(1, 14))
    def join(self, owner: str, size: int) -> None:
        if len(self.node.tenants) < 8:
            self.node.join(f"t{next(self.node.ids)}", owner, size * GIB, portable=owner != "a")

    @precondition(lambda self: self.node.tenants)
    @rule(data=st.data(), seconds=st.sampled_from([1.0, 30.0]), task=st.booleans(), lends=st.booleans())
    def ask(self, data: st.DataObject, seconds: float, task: bool, lends: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.node.tenants)))
        home = self.node.tenants[name].home
        gpus = len(home) or data.draw(st.integers(1, self.count))
        exclusive = task and not home
        waits = [one for one in self.node.requests.values() if one.tenant == name]
        if any(one.exclusive for one in waits) or (exclusive and waits):
            return  # a process is a task's or a kernel, and not both
        if any(one.tenant == name and one.exclusive for one in self.node.leases.values()):
            return
        self.node.ask(
            name,
            gpus,
            seconds,
            exclusive=exclusive,
            devices=tuple(f"gpu{n}" for n in range(gpus)) if exclusive else (),
            lends=exclusive and lends,
        )

    @precondition(lambda self: self.node.moving)
    @rule(data=st.data())
    def finish_move(self, data: st.DataObject) -> None:
        self.node.finish_move(data.draw(st.sampled_from(sorted(self.node.moving))))

    @rule(seconds=st.sampled_from([0.1, 2.0, 8.0]))
    def pass_time(self, seconds: float) -> None:
        self.node.pass_time(seconds)

    @precondition(lambda self: self.node.tenants)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.node.tenants)))
        node = self.node
        for table in (node.requests, node.leases):
            for key in [key for key, one in table.items() if one.tenant == name]:
                del table[key]
        node.moving.pop(name, None)
        node.on_disk.discard(name)
        del node.tenants[name]
        node.settle()

    @invariant()
    def no_device_is_lent_twice(self) -> None:
        if hasattr(self, "node"):
            used = [uuid for one in self.node.leases.values() if one.state is not LeaseState.PAUSED for uuid in one.devices]
            assert len(used) == len(set(used))


Lending.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestLending = Lending.TestCase
