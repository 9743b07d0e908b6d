"""Machines come and go under faults: nothing in two machines, nothing lost, in the order in which it was asked for."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_fabric import Kept, SmallLab, blocks, gpus, host, in_file, wish

from carrel.core.control.compositions import Blocks, Compositions, FabricBlocks
from carrel.core.domain.composition import Composition, CompositionState, MachineRules
from carrel.core.domain.errors import Conflict, Impossible, Unavailable
from carrel.core.domain.fabric import Block, BlockKind, Change, Step, Wish, by_name
from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS
from carrel.core.domain.user import Caller, Role, User
from carrel.core.policy.slices import room_of
from carrel.engines.fabric import Fault, SimulatedFabric

PARTS = [*blocks(BlockKind.CPU, 3), *gpus(4), *blocks(BlockKind.STORAGE, 2), *host("h1", 1)]


def _lab(path: Path, *faults: Fault, parts: Sequence[Block] = PARTS) -> SmallLab:
    return SmallLab(SimulatedFabric(in_file(path), parts, faults))


def test_a_machine_is_made_kept_and_given_back(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    one = lab.ask("2 gpu, 1 storage", time=3600)
    lab.settle()
    assert lab.state(one) is CompositionState.RUNNING
    assert lab.machine(one) == set(lab.one(one).blocks)
    assert len(lab.machine(one)) == 4
    lab.now += 3599
    lab.settle()
    assert lab.state(one) is CompositionState.RUNNING
    lab.now += 1
    lab.settle()
    assert lab.state(one) is CompositionState.COMPLETED
    assert lab.one(one).reason == "its time was over"
    assert not lab.machine(one)


def test_what_waits_gets_its_blocks_in_the_order_in_which_it_came(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    first, large, small, other = lab.ask("2 gpu"), lab.ask("4 gpu"), lab.ask("2 gpu"), lab.ask("1 slice 1g.5gb")
    lab.settle()
    states = [lab.state(number) for number in (first, large, small, other)]
    # The small one could have GPUs now, and would keep the large one waiting for ever.
    assert states == [CompositionState.RUNNING, CompositionState.PENDING, CompositionState.PENDING, CompositionState.RUNNING]
    assert lab.one(large).reason == "needs 4 GPUs; at most 2 are free together (zone east)"
    assert lab.one(small).reason == f"needs 2 GPUs for 1 h; what is free is kept for machine {large}"
    found = [lab.composer.promise(lab.one(number)) for number in (large, small)]
    assert [one.at for one in found] == [lab.one(first).end, lab.one(first).end + 3600]
    lab.composer.release(lab.one(first), "released")
    lab.settle()
    assert lab.state(large) is CompositionState.RUNNING
    assert lab.state(small) is CompositionState.PENDING


def test_a_short_one_goes_first_and_delays_nobody(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    first, large = lab.ask("2 gpu", time=3600), lab.ask("4 gpu")
    lab.settle()
    promised = lab.composer.promise(lab.one(large)).at
    lab.now += 60
    long, short = lab.ask("2 gpu", time=3400), lab.ask("2 gpu", time=3200)
    lab.settle()
    assert [lab.state(number) for number in (long, short)] == [CompositionState.PENDING, CompositionState.RUNNING]
    while lab.state(large) is CompositionState.PENDING:
        assert lab.composer.promise(lab.one(large)).at == promised == lab.one(first).end
        lab.now += 60
        lab.start_again()  # what is promised is found anew
        lab.settle()
    assert lab.one(large).begin == promised


def test_a_clock_that_goes_on_meanwhile_keeps_nothing_waiting(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    lab.composer.clock = itertools.count(1000.0, 0.001).__next__
    one = lab.ask("2 gpu")
    assert lab.composer.promise(lab.one(one)).now
    lab.settle()
    assert lab.state(one) is CompositionState.RUNNING


def test_what_waits_for_too_long_is_cancelled(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    lab.ask("4 gpu", time=3600)
    waits, later = lab.ask("2 gpu", within=600), lab.ask("2 gpu")
    lab.settle()
    lab.now += 600
    lab.settle()
    assert lab.state(waits) is CompositionState.CANCELLED
    assert lab.one(waits).reason == "it was not there within 10 min: needs 2 GPUs; at most 1 is free together (zone east)"
    assert lab.state(later) is CompositionState.PENDING


def test_what_waits_for_a_block_with_a_fault_says_so_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    used = lab.ask("1 gpu", time=60)
    large = lab.ask("4 gpu")
    lab.settle()
    sick = [replace(block, fault="XID 79") if block.name == "east-a100-3" else block for block in PARTS]
    lab.fabric = SimulatedFabric(in_file(tmp_path), sick)
    lab.start_again()
    other = lab.ask("2 gpu")
    lab.settle()
    assert lab.one(large).reason == "needs 4 GPUs; at most 1 is free together (zone east); east-a100-3: XID 79"
    assert [lab.state(number) for number in (used, large, other)] == [
        CompositionState.RUNNING, CompositionState.PENDING, CompositionState.RUNNING,
    ]  # fmt: skip
    lab.fabric = SimulatedFabric(in_file(tmp_path), PARTS)
    lab.start_again()
    lab.composer.release(lab.one(other), "released")
    lab.now += 60
    lab.settle()
    assert lab.state(large) is CompositionState.RUNNING


def test_fifty_at_once_are_served_in_order(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    asked = [lab.ask("1 gpu", time=60) for _ in range(50)]
    begun: list[int] = []
    while len(begun) < 50:
        lab.settle()
        begun += [number for number in asked if lab.one(number).begin and number not in begun]
        lab.now += 60
    assert begun == asked


def test_a_machine_in_use_is_not_taken_apart_and_an_idle_one_goes_early(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    used, idle = lab.ask("1 gpu", time=60), lab.ask("1 gpu", time=3600, linger=100)
    lab.settle()
    lab.used.add(f"c{used}")
    lab.now += 99
    lab.settle()
    assert [lab.state(one) for one in (used, idle)] == [CompositionState.RUNNING] * 2
    lab.now += 1
    lab.settle()
    assert [lab.state(one) for one in (used, idle)] == [CompositionState.RUNNING, CompositionState.COMPLETED]
    lab.composer.release(lab.one(used), "released by ada", CompositionState.CANCELLED)
    lab.settle()
    assert lab.one(used).reason == "released by ada; it goes when the jobs on it have ended"
    assert lab.machine(used)
    lab.used.clear()
    lab.settle()
    assert lab.state(used) is CompositionState.CANCELLED


def _of_physics(parts: Sequence[Block], lent: int) -> list[Block]:
    owned = ("east-a100-0", "east-a100-1", "h1-gpu0")
    return [replace(block, owner="physics", lent=lent) if block.name in owned else block for block in parts]


def test_blocks_of_an_account_are_lent_and_come_back_when_it_asks(tmp_path: Path) -> None:
    lab = _lab(tmp_path, parts=_of_physics(PARTS, 3600))
    guest, long = lab.ask("3 gpu", account="biology"), lab.ask("3 gpu", time=3601, account="biology")
    idle = lab.ask("1 slice 1g.5gb", account="biology")
    lab.settle()
    assert [lab.state(one) for one in (guest, idle)] == [CompositionState.RUNNING] * 2
    assert lab.one(long).reason == "asked for 3 GPUs; the fabric has 2 that fit in one zone (east)"
    # The lab's own blocks go first, and what is lent only where they are not enough.
    assert {"east-a100-2", "east-a100-3"} < lab.machine(guest)
    lab.used.add(f"c{guest}")
    owner, whole = lab.ask("2 gpu", account="physics"), lab.ask("1 slice 7g.40gb", account="physics")
    lab.settle()
    # What is in use is never taken: nothing new starts there, and it comes back when that is over.
    assert lab.state(guest) is CompositionState.RUNNING
    assert lab.one(guest).reason.startswith('account "physics", which has lent blocks to it, asks for them; it goes when')
    assert [lab.state(one) for one in (idle, whole)] == [CompositionState.COMPLETED, CompositionState.RUNNING]
    assert lab.state(owner) is CompositionState.PENDING
    lab.used.clear()
    lab.settle()
    assert lab.state(guest) is CompositionState.COMPLETED
    assert {"east-a100-0", "east-a100-1"} < lab.machine(owner)


def test_blocks_of_an_account_that_lends_nothing_are_for_that_alone(tmp_path: Path) -> None:
    lab = _lab(tmp_path, parts=_of_physics(PARTS, 0))
    other, owner = lab.ask("3 gpu", account="biology"), lab.ask("3 gpu", account="physics")
    lab.settle()
    assert [lab.state(one) for one in (other, owner)] == [CompositionState.PENDING, CompositionState.RUNNING]


@pytest.mark.parametrize("what", ["refused", "unseen"])
def test_a_block_that_fails_is_given_back_and_another_is_taken(tmp_path: Path, what: str) -> None:
    lab = _lab(tmp_path, Fault(block="east-a100-0", what=what, times=100))
    one = lab.ask("1 gpu")
    lab.settle()
    lab.now += 200
    lab.settle()
    assert lab.state(one) is CompositionState.RUNNING
    assert "east-a100-1" in lab.machine(one)
    assert by_name(lab.fabric.blocks())["east-a100-0"].machine == ""


def test_what_cannot_be_made_of_any_block_fails_with_the_reason(tmp_path: Path) -> None:
    lab = _lab(tmp_path, Fault(block="east-a100-*", what="refused", times=100))
    one = lab.ask("3 gpu")
    lab.settle()
    assert lab.state(one) is CompositionState.FAILED
    assert "the fabric has 2 that fit" in lab.one(one).reason
    assert "refused it" in lab.one(one).reason
    assert not lab.machine(one)


def test_an_answer_that_was_lost_is_looked_for(tmp_path: Path) -> None:
    lab = _lab(tmp_path, Fault(block="*", what="lost", times=100))
    one, two = lab.ask("2 gpu"), lab.ask("1 slice 2g.10gb")
    lab.settle()
    assert [lab.state(number) for number in (one, two)] == [CompositionState.RUNNING] * 2
    assert lab.one(two).blocks == ("h1-gpu0/2g.10gb@4",)


def test_slices_are_kept_for_the_next_and_go_where_they_are_in_the_way(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    one = lab.ask("2 slice 1g.5gb")
    lab.settle()
    lab.composer.release(lab.one(one), "released")
    lab.settle()
    assert sum(bool(block.of) for block in lab.fabric.blocks()) == 2
    two = lab.ask("1 slice 7g.40gb")
    lab.settle()
    assert lab.state(two) is CompositionState.RUNNING
    assert [block.name for block in lab.fabric.blocks() if block.of] == ["h1-gpu0/7g.40gb@0"]


def test_a_slice_is_had_by_its_name_and_waited_for(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    first = lab.ask("1 slice 1g.5gb")
    lab.settle()
    named = Wish(kind=BlockKind.GPU, sliced=True, names=lab.one(first).blocks)
    waits, other = lab.ask_for(named), lab.ask("1 gpu")
    assert lab.composer.never(lab.one(waits)) == ""
    lab.settle()
    assert lab.state(other) is CompositionState.RUNNING
    assert lab.one(waits).reason == "needs 1 slice (h1-gpu0/1g.5gb@6); none is free"
    lab.composer.release(lab.one(first), "released by ada", CompositionState.CANCELLED)
    lab.settle()
    assert lab.one(waits).blocks == lab.one(first).blocks


@pytest.mark.parametrize("asked", ["1 slice 1g.5gb, 1 slice 4g.20gb", "1 slice 4g.20gb, 1 slice 1g.5gb"])
def test_an_idle_slice_that_lies_where_a_larger_one_has_to_be_gives_way(tmp_path: Path, asked: str) -> None:
    lab = _lab(tmp_path)
    idle = Change(step=Step.CREATE_SLICE, block="h1-gpu0/1g.5gb@0", of="h1-gpu0", profile="1g.5gb", start=0)
    lab.fabric.do(idle, fence=1)
    one = lab.ask(asked)
    lab.settle()
    assert lab.state(one) is CompositionState.RUNNING
    assert set(lab.one(one).blocks) == {"h1-gpu0/4g.20gb@0", "h1-gpu0/1g.5gb@6"}


def test_a_user_has_no_more_machines_than_allowed_when_they_ask_at_once(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    class Slow(Kept):
        def get(self, *key: Any) -> Composition | None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # where one has to wait for the other, it goes on alone
            return super().get(*key)

    lab = SmallLab(SimulatedFabric(in_file(tmp_path), PARTS), records=Slow())
    about = {"composer": lab.composer, "rules": MachineRules(longest=3600, machines=1)}
    keeper = Compositions(noun=COMPOSITIONS, records=lab.records, clock=lambda: lab.now, **about)  # type: ignore[arg-type]
    ada = Caller(user=User(subject="ada", name="Ada"))
    with ThreadPoolExecutor(2) as several:
        asked = [several.submit(keeper.put, ada, Composition(wishes=wish("1 gpu"), time=60)) for _ in range(2)]
    assert [type(one.exception()) for one in asked].count(Conflict) == 1
    assert len(lab.records.all()) == 1


def test_a_user_has_no_more_gpus_and_slices_than_allowed(tmp_path: Path) -> None:
    lab = SmallLab(SimulatedFabric(in_file(tmp_path), PARTS))
    rules = MachineRules(longest=3600, machines=9, max_gpus_per_user=3)
    keeper = Compositions(noun=COMPOSITIONS, records=lab.records, clock=lambda: lab.now, composer=lab.composer, rules=rules)

    def ask(user: str, *words: str) -> None:
        caller = Caller(user=User(subject=user, name=user))
        keeper.put(caller, Composition(wishes=tuple(one for word in words for one in wish(word)), time=60))

    ask("ada", "2 gpu")
    with pytest.raises(Conflict, match="ada has 2 GPUs and slices in machines from parts and asks for 2 more, and may have 3"):
        ask("ada", "2 gpu")
    ask("bob", "2 gpu")
    ask("ada", "1 gpu")
    assert [(one.owner, one.wishes[0].count) for one in lab.records.all()] == [("ada", 2), ("bob", 2), ("ada", 1)]


def test_more_than_the_rules_ever_allow_is_refused_at_once(tmp_path: Path) -> None:
    lab = SmallLab(SimulatedFabric(in_file(tmp_path), PARTS))
    rules = MachineRules(longest=3600, machines=9, max_gpus_per_user=3)
    keeper = Compositions(noun=COMPOSITIONS, records=lab.records, clock=lambda: lab.now, composer=lab.composer, rules=rules)
    ada = Caller(user=User(subject="ada", name="ada"))
    with pytest.raises(Impossible, match="ada asks for 4, and may have 3 GPUs and slices in machines from parts"):
        keeper.put(ada, Composition(wishes=wish("4 gpu"), time=60, preview=True))


def test_of_machines_of_others_one_sees_that_their_blocks_are_in_use(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    one, slice_ = lab.ask("1 gpu"), lab.ask("1 slice 1g.5gb")
    lab.settle()
    (name,) = lab.one(slice_).blocks
    keeper = Blocks(noun=BLOCKS, records=FabricBlocks(composer=lab.composer), clock=lambda: lab.now)
    seen = {}
    for user, role in (("ada", Role.USER), ("bob", Role.USER), ("eve", Role.OPERATOR)):
        there = by_name(keeper.list(Caller(user=User(subject=user, name=user, role=role))))
        seen[user] = [(there[block].used, there[block].composition, there[block].machine) for block in ("east-a100-0", name)]
        assert not there["east-a100-1"].used
    assert seen["ada"] == seen["eve"] == [(True, one, "c1"), (True, slice_, "h1")]
    assert seen["bob"] == [(True, 0, ""), (True, 0, "h1")]


def test_a_block_that_goes_missing_is_named(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    one = lab.ask("1 gpu")
    lab.settle()
    lab.fabric = SimulatedFabric(in_file(tmp_path), [block for block in PARTS if block.name != "east-a100-0"])
    lab.start_again()
    lab.settle()
    assert lab.one(one).reason == "east-a100-0 is missing"
    lab.composer.release(lab.one(one), "released")
    lab.settle()
    assert lab.state(one) is CompositionState.COMPLETED


def test_a_lab_that_was_replaced_changes_nothing_more(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    old = lab.composer
    lab.start_again()
    one = lab.ask("1 gpu")
    lab.settle()
    lab.composer.release(lab.one(one), "released")
    before = lab.fabric.blocks()
    old.turn()
    assert lab.fabric.blocks() == before


class Killed(BaseException):
    """The lab was killed here."""


class Faulty:
    """A fabric in front of another, with faults at random: it refuses, loses answers, is late, kills the lab before and after."""

    def __init__(self, fabric: SimulatedFabric, chance: random.Random) -> None:
        self.fabric, self.chance, self.late = fabric, chance, list[tuple[Change, int]]()
        self.faults = True

    def blocks(self) -> Sequence[Block]:
        if self.faults and self.chance.random() < 0.02:
            raise Unavailable("the fabric does not answer")
        return self.fabric.blocks()

    def do(self, change: Change, *, fence: int) -> None:
        what = self.chance.random() if self.faults else 1.0
        if what < 0.04:
            raise Conflict("refused")
        # A fabric is far away; slices are cut by the driver of this machine, which answers when it is done.
        if what < 0.08 and change.step in (Step.ATTACH, Step.DETACH):
            self.late.append((change, fence))
            raise Unavailable("no answer; it is made later")
        if what < 0.11:
            raise Killed
        self.fabric.do(change, fence=fence)
        if what < 0.14:
            raise Unavailable("no answer; it is made")
        if what < 0.17:
            self.fabric.do(change, fence=fence)  # twice
        if what < 0.20:
            raise Killed

    def deliver(self) -> None:
        """Changes whose answer was lost are made now, if they still can."""
        for change, fence in self.late:
            with suppress(Conflict, Unavailable):
                self.fabric.do(change, fence=fence)
        self.late.clear()


@pytest.mark.parametrize("step", range(8))
def test_a_kill_at_any_step_of_one_that_goes_first_delays_nobody(tmp_path: Path, step: int) -> None:
    lab = _lab(tmp_path)
    first, large = lab.ask("2 gpu", time=3600), lab.ask("4 gpu")
    lab.settle()
    short = lab.ask("2 gpu, 1 storage", time=1800)
    fabric, steps = lab.fabric, itertools.count()

    class Killing:
        def blocks(self) -> Sequence[Block]:
            return fabric.blocks()

        def do(self, change: Change, *, fence: int) -> None:
            if next(steps) == step:
                raise Killed
            fabric.do(change, fence=fence)
            if next(steps) == step:
                raise Killed

    lab.fabric = Killing()
    lab.start_again()
    for _ in range(3):
        try:
            lab.settle()
        except Killed:
            lab.start_again()
    assert lab.state(short) is CompositionState.RUNNING
    _check(lab, fabric)  # type: ignore[arg-type]
    lab.now = lab.one(first).end
    lab.settle()
    assert lab.one(large).begin == lab.one(first).end
    assert [lab.state(number) for number in (first, short)] == [CompositionState.COMPLETED] * 2


def _check(lab: SmallLab, fabric: SimulatedFabric) -> None:
    """No block is in two machines, no slice is used twice, and a machine that is there has all that it was given."""
    holders: dict[str, int] = {}
    for one in lab.records.all():
        if one.state.over or one.state is CompositionState.PENDING:
            continue
        for name in one.blocks:
            assert name not in holders, f"{name} is of {holders[name]} and {one.id}"
            holders[name] = one.id
        if one.state is CompositionState.RUNNING:
            there = by_name(fabric.blocks())
            lost = [name for name in one.blocks if there[name].machine != one.machine]
            assert not lost, f"{one.id} is without {lost}"
    for gpu in (block for block in fabric.blocks() if block.profiles):
        slices = [block for block in fabric.blocks() if block.of == gpu.name]
        assert room_of(gpu, slices).compute >= 0
        assert not slices or gpu.name not in holders or lab.state(holders[gpu.name]) is not CompositionState.RUNNING


WISHES = [
    "1 gpu",
    "2 gpu",
    "3 gpu, 1 storage",
    "1 storage",
    "1 slice 1g.5gb",
    "2 slice 2g.10gb",
    "1 slice 4g.20gb",
    "2 cpu, 1 gpu",
]


def _random_life(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    fabric = SimulatedFabric(in_file(path), PARTS)
    lab = SmallLab(Faulty(fabric, chance))
    faulty = lab.fabric
    assert isinstance(faulty, Faulty)
    asked = []
    for _ in range(40):
        if chance.random() < 0.4:
            about = {"time": chance.choice([20, 100, 1000, 4000]), "within": chance.choice([0, 0, 0, 50])}
            asked.append(lab.ask(chance.choice(WISHES), **about))
        if asked and chance.random() < 0.15:
            lab.composer.release(lab.one(chance.choice(asked)), "released", CompositionState.CANCELLED)
        try:
            lab.composer.turn()
        except Killed:
            lab.start_again()
        except Unavailable:
            pass
        if chance.random() < 0.2:
            faulty.deliver()
        lab.now += chance.choice([0, 1, 6])
        _check(lab, fabric)
    # The weather clears: everything comes to its end, and every block is free again.
    faulty.faults = False
    faulty.deliver()
    for _ in range(3000):
        lab.now += 50
        lab.composer.turn()
        _check(lab, fabric)
        if all(lab.state(number).over for number in asked):
            break
    lab.settle()
    assert all(lab.state(number).over for number in asked), [lab.one(number) for number in asked if not lab.state(number).over]
    assert all(block.fixed or block.of or not block.machine for block in fabric.blocks())
    assert all(lab.one(number).reason for number in asked)


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_under_faults(tmp_path: Path, seed: int) -> None:
    _random_life(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_thousand_random_lives_under_faults(tmp_path: Path) -> None:
    for seed in range(1000, 2000):
        path = tmp_path / str(seed)
        path.mkdir()
        _random_life(path, seed)


def test_a_plan_for_a_change_is_taken_back_step_by_step(tmp_path: Path) -> None:
    lab = _lab(tmp_path)
    one = lab.ask("2 gpu")
    lab.composer.turn()
    lab.composer.turn()
    assert [change.step for change in lab.one(one).changes] == [Step.ATTACH] * len(lab.one(one).changes)
    lab.composer.release(lab.one(one), "ada took it back", CompositionState.CANCELLED)
    lab.settle()
    assert lab.state(one) is CompositionState.CANCELLED
    assert not lab.machine(one)
