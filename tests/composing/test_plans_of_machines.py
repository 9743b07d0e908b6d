"""Which blocks a machine gets (`carrel.core.policy.compose`), by hand and for random fabrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_fabric import blocks, gpus, host, wish

from carrel.core.domain.errors import Invalid
from carrel.core.domain.fabric import Block, BlockKind, SliceProfile, Step, Together, Wish, by_name
from carrel.core.domain.units import GIB
from carrel.core.policy.compose import Plan, Shortage, plan
from carrel.core.policy.free_blocks import Asked
from carrel.core.policy.slices import free_slices, room_of, smallest_profile

EAST = [*blocks(BlockKind.CPU, 2), *gpus(4), *blocks(BlockKind.STORAGE, 2)]
WEST = [*blocks(BlockKind.CPU, 1, zone="west"), *gpus(2, zone="west", type="h100")]


def _planned(found: Plan | Shortage) -> Plan:
    assert isinstance(found, Plan), found
    return found


def _short(found: Plan | Shortage) -> Shortage:
    assert isinstance(found, Shortage), found
    return found


def _ask(text: str, account: str = "") -> Asked:
    return Asked(wishes=wish(text), machine="c1", account=account)


def test_a_machine_is_made_around_a_cpu_of_one_zone() -> None:
    found = _planned(plan([*EAST, *WEST], _ask("2 gpu a100, 1 storage")))
    assert found.zone == "east"
    assert set(found.blocks) == {"east-cpu-0", "east-a100-0", "east-a100-1", "east-storage-0"}
    assert [change.step for change in found.changes] == [Step.ATTACH] * 4
    assert found.changes[0].block == "east-cpu-0"


def test_the_zone_where_least_is_left_over_is_taken() -> None:
    assert _planned(plan([*EAST, *WEST], _ask("2 gpu"))).zone == "west"


def test_nothing_in_use_faulty_or_of_others_is_taken() -> None:
    there = [replace(block, fault="XID 79") if block.name == "east-a100-0" else block for block in EAST]
    there = [replace(block, owner="physics") if block.name == "east-a100-1" else block for block in there]
    assert _planned(plan(there, _ask("1 gpu"), taken={"east-a100-2"})).blocks[1:] == ("east-a100-3",)
    assert _planned(plan(there, _ask("1 gpu", "physics"))).blocks[1:] == ("east-a100-1",)
    assert "at most 2 are free together (zone east)" in _short(plan(there, _ask("3 gpu"))).message
    assert _short(plan(there, _ask("3 gpu"))).possible


def test_what_the_fabric_never_has_is_told_apart_from_what_is_not_free() -> None:
    assert not _short(plan(EAST, _ask("5 gpu"))).possible
    assert _short(plan(EAST, _ask("5 gpu"))).message == "asked for 5 GPUs; the fabric has 4 that fit in one zone (east)"
    assert _short(plan([*EAST, *WEST], _ask("1 gpu h100, 1 storage"))).message.endswith("no zone of the fabric has all of them")
    assert _short(plan(EAST, _ask("1 gpu"), taken={"east-cpu-0", "east-cpu-1"})).message == "needs 1 CPU block; none is free"


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"count": 0}, "0 gpu blocks are asked for"),
        ({"count": 10_001}, "at most 10000"),
        ({"type": "a100\x1b[31m"}, "names no block, type or profile"),
        ({"names": ("g1", "g2")}, "1 gpu blocks are asked for, and 2 named"),
        ({"sliced": True}, "A slice of no size"),
        ({"size": -1}, "blocks of -1"),
    ],
)
def test_what_cannot_be_asked_for_is_said(about: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        Wish(kind=BlockKind.GPU, **about)


def test_blocks_lie_as_they_are_asked_to() -> None:
    taken = {"east-a100-1"}
    island = Wish(kind=BlockKind.GPU, count=2, together=Together.ISLAND)
    assert _planned(plan(EAST, Asked(wishes=(island,), machine="c1"), taken=taken)).blocks[1:] == ("east-a100-2", "east-a100-3")
    # A broken island is used up before a whole one is broken.
    assert _planned(plan(EAST, _ask("1 gpu"), taken=taken)).blocks[1:] == ("east-a100-0",)
    spread = Wish(kind=BlockKind.GPU, count=3, together=Together.SPREAD)
    found = _planned(plan(EAST, Asked(wishes=(spread,), machine="c1")))
    assert len({by_name(EAST)[name].rack for name in found.blocks[1:]}) == 3
    three = replace(island, count=3)
    assert not _short(plan(EAST, Asked(wishes=(three,), machine="c1"))).possible
    named = Wish(kind=BlockKind.GPU, count=1, names=("east-a100-3",))
    assert set(_planned(plan(EAST, Asked(wishes=(named,), machine="c1"))).blocks) == {"east-cpu-0", "east-a100-3"}


def test_the_smallest_slice_that_fits_is_cut_where_it_hurts_least() -> None:
    there = host("h1", 2)
    ten = Asked(wishes=(Wish(kind=BlockKind.GPU, sliced=True, size=9 * GIB),), machine="c1")
    found = _planned(plan(there, ten))
    # At 6 it leaves the place of a 4g slice; compute slices allow four of one memory slice beside it.
    assert found.blocks == ("h1-gpu0/1g.10gb@6",)
    assert found.machine == "h1"


def _with_slices(there: list[Block], *names: str) -> list[Block]:
    gpu = next(block for block in there if block.profiles)
    made = []
    for name in names:
        title, start = name.split("/")[1].split("@")
        made.append(replace(gpu, name=name, of=gpu.name, profile=title, start=int(start), profiles=()))
    return [*there, *made]


def test_slices_in_use_stay_and_idle_ones_make_room() -> None:
    there = _with_slices(host("h1", 1), "h1-gpu0/1g.5gb@0", "h1-gpu0/1g.5gb@5")
    used = {"h1-gpu0/1g.5gb@0"}
    found = _planned(plan(there, _ask("1 slice 3g.20gb"), taken=used))
    assert [(change.step, change.block) for change in found.changes] == [
        (Step.DESTROY_SLICE, "h1-gpu0/1g.5gb@5"),
        (Step.CREATE_SLICE, "h1-gpu0/3g.20gb@4"),
    ]
    assert _planned(plan(there, _ask("1 slice 1g.5gb"), taken=used)).changes == ()
    assert _short(plan(there, _ask("1 slice 7g.40gb"), taken=used)).possible
    # The whole GPU is not free while a slice of it is used.
    assert _short(plan(there, _ask("1 gpu"), taken=used)).message == "needs 1 GPU; none is free"
    whole = _planned(plan(there, _ask("1 gpu")))
    assert whole.blocks == ("h1-gpu0",)
    assert {change.step for change in whole.changes} == {Step.DESTROY_SLICE}


@pytest.mark.parametrize("together", Together)
def test_blocks_that_are_lent_are_taken_only_where_the_labs_own_are_not_enough(together: Together) -> None:
    lent = [replace(block, name=f"a-{block.name}", rack="of-vision", owner="vision", lent=4000) for block in gpus(2)]
    two = Asked(wishes=(Wish(kind=BlockKind.GPU, count=2, together=together),), machine="c1", time=3600, account="physics")
    cpu = blocks(BlockKind.CPU, 1)
    assert not any(name.startswith("a-") for name in _planned(plan([*cpu, *lent, *gpus(4)], two)).blocks)
    assert _planned(plan([*cpu, *lent, *gpus(4)], replace(two, account="vision"))).blocks[-2:] == (lent[0].name, lent[1].name)
    if together is Together.ANYHOW:
        # Nor where they lie in the zone, or in the machine, in which less would be left over.
        west = [*blocks(BlockKind.CPU, 1, zone="west"), *gpus(6, zone="west")]
        assert _planned(plan([*cpu, *lent, *west], two)).zone == "west"
        small, owned = host("h2", 1), [replace(block, owner="vision", lent=4000) for block in host("h1", 1)]
        assert _planned(plan([*owned, *small], replace(two, wishes=wish("1 slice 1g.5gb")))).machine == "h2"


def test_machines_that_are_alike_are_looked_at_once() -> None:
    """Ten thousand blocks: the plan is the one of two such machines."""
    there = [block for number in range(1111) for block in host(f"h{number:04}", 8)]
    for asked in ("30 slice 1g.5gb", "10000 slice 1g.5gb"):
        many, few = plan(there, _ask(asked)), plan(there[:18], _ask(asked))
        assert many == few


_PROFILES = st.sampled_from(["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"])


@given(st.lists(st.tuples(_PROFILES, st.integers(1, 3)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_random_slices_never_overlap_and_those_in_use_never_move(asked: list[tuple[str, int]], random: object) -> None:
    there: list[Block] = host("h1", 2)
    used: list[set[str]] = []
    for profile, count in asked:
        taken = frozenset[str]().union(*used)
        before = {block.name for block in there if block.name in taken}
        found = plan(there, _ask(f"{count} slice {profile}"), taken=taken)
        if isinstance(found, Shortage):
            if used:
                used.pop(random.randrange(len(used)))  # type: ignore[attr-defined]
            continue
        gone = {change.block for change in found.changes if change.step is Step.DESTROY_SLICE}
        made = [change for change in found.changes if change.step is Step.CREATE_SLICE]
        assert not gone & taken
        assert len(set(found.blocks)) == count
        gpu = by_name(there)
        there = [block for block in there if block.name not in gone]
        there += [
            replace(gpu[one.of], name=one.block, of=one.of, profile=one.profile, start=one.start, profiles=()) for one in made
        ]
        used.append(set(found.blocks))
        assert before <= {block.name for block in there}
        for card in (block for block in there if block.profiles):
            # Counters of a GPU are never below zero, and no two slices cover one memory slice.
            slices = [block for block in there if block.of == card.name]
            left = room_of(card, slices)
            covered = sum(profile.memory_slices for one in slices if (profile := card.profile_named(one.profile)))
            assert left.compute >= 0
            assert len(left.memory) == card.memory_slices - covered


def test_what_is_free_now_is_told_by_slice() -> None:
    gpu, other = host("h1", 2)[1:]
    used = replace(gpu, name="h1-gpu0/2g.10gb@0", of=gpu.name, profile="2g.10gb", start=0, profiles=(), used=True)
    idle = replace(used, name="h1-gpu0/3g.20gb@4", profile="3g.20gb", start=4, used=False)
    told = {one.profile: (one.free, one.used) for one in free_slices([gpu, replace(other, fault="XID 79"), used, idle])}
    assert told == {
        "1g.5gb": (5, 0), "1g.10gb": (3, 0), "2g.10gb": (2, 1), "3g.20gb": (1, 0), "4g.20gb": (0, 0), "7g.40gb": (0, 0),
    }  # fmt: skip
    assert free_slices([replace(gpu, used=True)])[0].free == 0


def test_slices_are_asked_for_by_the_sizes_of_their_names() -> None:
    """1g.18gb of an H200 has 16 GiB: who asks for 18 GB by name means it."""
    profile = SliceProfile(name="1g.18gb", compute=1, memory_slices=1, memory=16 * GIB, starts=(0,))
    large = replace(profile, name="1g.35gb", memory_slices=2, memory=33 * GIB)
    with_media = replace(profile, name="1g.18gb+me")
    assert smallest_profile([with_media, large, profile], 18 * GIB) == profile
    assert smallest_profile([with_media, large, profile], 18 * GIB + 1) == large
    assert smallest_profile([with_media, large, profile], 36 * GIB) is None
