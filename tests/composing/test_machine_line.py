"""Who waits for a machine, until when, and who goes first meanwhile (`carrel.core.policy.machine_line`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_fabric import blocks, gpus, host, wish

from carrel.core.domain.fabric import Block, BlockKind, Step
from carrel.core.policy.free_blocks import Asked, projected
from carrel.core.policy.machine_line import CHANGE_SECONDS, MOST_PROMISED, Promise, Use, line

PARTS = [*blocks(BlockKind.CPU, 4), *gpus(4), *blocks(BlockKind.STORAGE, 2), *host("h1", 1)]
HOUR = 3600


def _ask(number: int, text: str, time: int = HOUR) -> Asked:
    return Asked(wishes=wish(text), number=number, machine=f"c{number}", time=time)


def _use(until: float, *names: str) -> Use:
    return Use(names=frozenset(f"east-{name}" for name in names), until=until)


def _two_used(*asked: Asked) -> Sequence[Promise]:
    """Two of four GPUs come back in an hour."""
    return line(PARTS, asked, [_use(HOUR, "cpu-0", "a100-0", "a100-1")], 0.0)


def test_a_later_one_goes_first_where_it_is_over_by_then() -> None:
    short, long = HOUR - int(CHANGE_SECONDS), HOUR - int(CHANGE_SECONDS) + 1
    first, second, third = _two_used(_ask(1, "4 gpu"), _ask(2, "2 gpu", long), _ask(3, "2 gpu", short))
    assert [one.at for one in (first, second, third)] == [HOUR, 2 * HOUR, 0.0]
    assert first.why == "needs 4 GPUs; at most 2 are free together (zone east)"
    assert second.why == "needs 2 GPUs for 55 min; what is free is kept for machine 1"


def test_a_later_one_goes_first_where_it_takes_nothing_of_it() -> None:
    first, drive, slice_, gpu = _two_used(_ask(1, "3 gpu"), _ask(2, "1 storage"), _ask(3, "1 slice 1g.5gb"), _ask(4, "1 gpu"))
    assert [one.at for one in (first, drive, slice_, gpu)] == [HOUR, 0.0, 0.0, 0.0]
    assert not (first.names & gpu.names)


def test_a_slice_that_is_cut_later_keeps_its_place() -> None:
    """The whole GPU waits for a slice that is in use; a small slice would lie in its way."""
    gpu = next(block for block in PARTS if block.profiles)
    used = replace(gpu, name="h1-gpu0/3g.20gb@4", of=gpu.name, profile="3g.20gb", start=4, profiles=(), fixed=False)
    uses = [Use(names=frozenset({used.name}), until=HOUR)]
    asked = (_ask(1, "1 slice 7g.40gb"), _ask(2, "1 slice 1g.5gb"), _ask(3, "1 slice 1g.5gb", 60))
    whole, small, short = line([*PARTS, used], asked, uses, 0.0)
    assert [one.at for one in (whole, small, short)] == [HOUR, 2 * HOUR, 0.0]
    assert small.why.endswith("what is free is kept for machine 1")


def test_what_has_a_fault_is_named_and_keeps_nobody_waiting() -> None:
    sick = [replace(block, fault="XID 79") if block.name == "east-a100-3" else block for block in PARTS]
    waits, other, never = line(sick, [_ask(1, "4 gpu"), _ask(2, "3 gpu"), _ask(3, "9 gpu")], [], 0.0)
    assert (waits.at, waits.plan, waits.possible) == (inf, None, True)
    assert waits.why == "needs 4 GPUs; at most 3 are free together (zone east); east-a100-3: XID 79"
    assert other.at == 0.0
    assert not never.possible


def test_what_nobody_knows_the_end_of_keeps_nobody_waiting() -> None:
    waits, other = line(PARTS, [_ask(1, "4 gpu"), _ask(2, "1 gpu")], [_use(inf, "a100-0")], 0.0)
    assert (waits.at, other.at) == (inf, 0.0)


def test_many_that_wait_are_served_in_order() -> None:
    asked = [_ask(number, "4 gpu") for number in range(1, MOST_PROMISED + 3)]
    found = line(PARTS, asked, [], 0.0)
    assert [one.at for one in found] == [*(HOUR * n for n in range(MOST_PROMISED + 1)), inf]


@dataclass
class _Life:
    """Machines that are asked for, made, and over to the second."""

    blocks: list[Block] = field(default_factory=lambda: list(PARTS))
    now: float = 0.0
    waiting: list[Asked] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    #: What each that waits was told, and when it was made.
    told: dict[int, float] = field(default_factory=dict)

    def go_on(self, until: float) -> None:
        """Let time pass; each machine is given back when it is over."""
        while self.now < until:
            self.now = min([until, *(use.until for use in self.uses if use.until > self.now)])
            self.look()

    def look(self) -> None:
        """Make what can be made, and check what is promised."""
        self.uses = [use for use in self.uses if use.until > self.now]
        while self.make():
            continue  # beside what is there now others may have a place
        found = line(self.blocks, self.waiting, self.uses, self.now)
        if found:
            assert found[0].at <= self.told.get(self.waiting[0].number, inf), "the first waits longer because of others"
        self.told = {asked.number: one.at for asked, one in zip(self.waiting, found, strict=True)}

    def make(self) -> bool:
        """Make what can be made now."""
        found = zip(self.waiting, line(self.blocks, self.waiting, self.uses, self.now), strict=True)
        begun = {asked: one.plan for asked, one in found if one.now and one.plan}
        for asked, plan in begun.items():
            assert not any(plan.names & use.names for use in self.uses), "it is in use"
            gone = {change.block for change in plan.changes if change.step is Step.DESTROY_SLICE}
            made = [change for change in plan.changes if change.step is Step.CREATE_SLICE]
            self.blocks = [block for block in projected(self.blocks, made) if block.name not in gone]
            self.uses.append(Use(names=frozenset(plan.blocks), until=self.now + asked.time))
        self.waiting = [asked for asked in self.waiting if asked not in begun]
        return bool(begun)


_WISHES = ["1 gpu", "2 gpu", "3 gpu, 1 storage", "4 gpu", "1 storage", "1 slice 1g.5gb", "2 slice 2g.10gb", "1 slice 7g.40gb"]
_ARRIVALS = st.lists(st.tuples(st.sampled_from(_WISHES), st.integers(1, 5000), st.integers(0, 3000)), min_size=1, max_size=25)


@given(_ARRIVALS)
def test_the_first_that_waits_never_waits_longer_because_of_those_behind_it(arrivals: list[tuple[str, int, int]]) -> None:
    life = _Life()
    for number, (text, time, pause) in enumerate(arrivals, 1):
        life.waiting.append(_ask(number, text, time))
        life.look()
        life.go_on(life.now + pause)
    while life.waiting:
        life.go_on(min(use.until for use in life.uses))


@pytest.mark.parametrize("text", ["5 gpu", "1 gpu h100", "3 storage", "8 slice 1g.5gb", "2 slice 4g.20gb", "5 cpu"])
def test_what_the_fabric_never_has_is_never_promised(text: str) -> None:
    (found,) = line(PARTS, [_ask(1, text)], [], 0.0)
    assert (found.possible, found.plan) == (False, None)
