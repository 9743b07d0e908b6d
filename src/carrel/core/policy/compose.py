"""Which blocks a machine gets: a plan is worked out from what the fabric has and what is asked for, and nothing is done.

A machine is made around a free CPU block of a zone, or it is one that stands already (a host), with blocks built into it. All
its blocks are of one zone. Slices are cut from GPUs that are built into a host, so that several people may have slices of one
GPU; slices in use stay where they are. Nothing that is in use is ever part of a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from carrel.core.domain.fabric import Block, BlockKind, Change, Step, Together, Wish, nominal
from carrel.core.policy.free_blocks import LABS, NONE, Asked, FreeBlocks, Names
from carrel.core.policy.slice_cuts import SliceCuts


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a machine comes to be."""

    zone: str
    machine: str
    #: Names of the blocks that it has then, beside those that are built into it for all.
    blocks: tuple[str, ...]
    #: In the order in which they are done.
    changes: tuple[Change, ...]

    @property
    def names(self) -> frozenset[str]:
        """The blocks that nobody else may have meanwhile: those that it has, and those that it changes."""
        return frozenset(self.blocks) | {change.block for change in self.changes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why there is no plan now."""

    message: str
    #: False where not even a fabric that is free and well has it.
    possible: bool = True


def plan(blocks: Sequence[Block], asked: Asked, *, taken: Names = NONE) -> Plan | Shortage:
    """Return the plan that leaves most for others, or why there is none.

    `taken` are the names of blocks that others have or are promised (a GPU stands for its slices, too).
    """
    return find(blocks, asked, taken=taken) or shortage(blocks, asked, taken=taken)


def find(blocks: Sequence[Block], asked: Asked, *, taken: Names = NONE) -> Plan | None:
    """Return the plan that leaves most for others; None where there is none."""
    found = min(_plans(FreeBlocks(blocks, asked, taken), asked), key=lambda one: one[0], default=None)
    return None if found is None else found[1]


def shortage(blocks: Sequence[Block], asked: Asked, *, taken: Names = NONE) -> Shortage:
    """Return why there is no plan."""
    whole = ever(blocks, asked)
    return (
        whole
        if isinstance(whole, Shortage)
        else Shortage(message=_not_now(FreeBlocks(blocks, asked, taken), asked), possible=True)
    )


def ever(blocks: Sequence[Block], asked: Asked) -> Plan | Shortage:
    """Return the plan as if all were free and well, or why the fabric never has it."""
    free = [replace(block, fault="", seen=True, machine=block.machine if block.fixed else "") for block in blocks]
    whole = FreeBlocks(free, asked)
    found = next(_plans(whole, asked), None)
    return found[1] if found is not None else Shortage(message=_never(whole, asked), possible=False)


def _wishes(asked: Asked) -> Sequence[Wish]:
    return asked.wishes if asked.names_a_cpu else (Wish(kind=BlockKind.CPU), *asked.wishes)


#: What tells a better plan from a worse one: whose blocks it has, a shared machine, changes and blocks left beside it, how GPUs
#: are cut, its place.
_Rank = tuple[int, int, int, tuple[int, ...], str, str]


def _places(fabric: FreeBlocks, asked: Asked) -> Iterator[tuple[str, str]]:
    """Where a machine may be: a zone and no host, or a zone and the host there."""
    if not any(wish.sliced for wish in asked.wishes):
        yield from ((zone, "") for zone in fabric.zones)
    if not asked.names_a_cpu:
        yield from ((zone, host) for host, zone in fabric.hosts.items())


def _unlike(fabric: FreeBlocks, asked: Asked) -> Iterator[tuple[str, str]]:
    """The same without machines that are as good as one before: a fabric has many, and few that differ."""
    seen: set[object] = set()
    named = any(wish.names for wish in asked.wishes)
    for zone, host in sorted(_places(fabric, asked)):
        alike = fabric.signature(host, asked.rank) if host and not named else (zone, host)
        if alike not in seen:
            seen.add(alike)
            yield zone, host


def _plans(fabric: FreeBlocks, asked: Asked) -> Iterator[tuple[_Rank, Plan]]:
    for zone, host in _unlike(fabric, asked):
        found = _composed(fabric, asked, zone, host)
        if found is not None:
            yield found


def _composed(fabric: FreeBlocks, asked: Asked, zone: str, host: str) -> tuple[_Rank, Plan] | None:
    """What the machine gets in this zone; with `host`, the machine that stands there."""
    machine, chosen, cuts = host or asked.machine, dict[str, Block](), SliceCuts(fabric, host, asked.rank)
    left = 0
    # The rarest first: what is named, then the largest slices, which find no room after smaller ones.
    wishes = asked.wishes if host else _wishes(asked)
    for wish in sorted(wishes, key=lambda one: (not one.names, one.sliced, -(one.size or nominal(one.profile)))):
        if wish.sliced:
            if not cuts.take(wish, chosen):
                return None
            continue
        there = [block for block in fabric.there(zone, host, wish) if block.name not in chosen]
        picked = _together(there, wish, asked.rank)
        if picked is None:
            return None
        left += len(there) - len(picked)
        chosen |= {block.name: block for block in picked}
    changes = [
        *(_slice_change(Step.DESTROY_SLICE, one) for one in cuts.gone(chosen)),
        *(_slice_change(Step.CREATE_SLICE, one) for one in cuts.made),
        *(
            Change(step=Step.ATTACH, block=block.name, machine=machine)
            for block in sorted(chosen.values(), key=lambda one: one.kind is not BlockKind.CPU)
            if not host
        ),
    ]
    made = Plan(zone=zone, machine=machine, blocks=tuple(chosen), changes=tuple(changes))
    # A host is shared: whole blocks make a machine of their own where they can.
    shared, lent = int(bool(host)), sum(asked.rank(block) - LABS for block in chosen.values())
    return (lent, shared, len(changes) + left, cuts.spoilt(), zone, host), made


def _slice_change(step: Step, one: Block) -> Change:
    return Change(step=step, block=one.name, of=one.of, profile=one.profile, start=one.start)


def _together(blocks: Sequence[Block], wish: Wish, rank: Callable[[Block], int]) -> list[Block] | None:
    """So many of the blocks as the wish says, lying to each other as it says; None where there are not enough."""
    for last in sorted({rank(block) for block in blocks}):
        if found := _lying([block for block in blocks if rank(block) <= last], wish, rank):
            return found
    return None


def _lying(blocks: Sequence[Block], wish: Wish, rank: Callable[[Block], int]) -> list[Block] | None:
    if len(blocks) < wish.count:
        return None
    if wish.together is Together.ISLAND:
        groups = [
            group for name, group in _groups(blocks, lambda block: block.island).items() if name and len(group) >= wish.count
        ]
        return min(groups, key=len)[: wish.count] if groups else None
    if wish.together is Together.SPREAD:
        racks = list(_groups(blocks, lambda block: block.rack).values())
        turns = [block for turn in range(max(map(len, racks))) for rack in racks for block in rack[turn : turn + 1]]
        return turns[: wish.count]
    islands = _groups(blocks, lambda block: block.island)
    # Small islands are broken before large ones.
    return sorted(blocks, key=lambda block: (rank(block), block.size, len(islands[block.island])))[: wish.count]


def _groups(blocks: Iterable[Block], key: Callable[[Block], str]) -> Mapping[str, list[Block]]:
    found: dict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        found[key(block)].append(block)
    return found


def _never(whole: FreeBlocks, asked: Asked) -> str:
    for wish in sorted(_wishes(asked), key=asked.wishes.__contains__, reverse=True):
        zone, most = _most(whole, asked, wish)
        if most < wish.count:
            where = f"in one zone ({zone})" if most else "in any zone"
            return f"asked for {wish.title}; the fabric has {most or 'none'} that fit{'' if most else 's'} {where}"
    return f"asked for {asked.titles}; no zone of the fabric has all of them"


def _not_now(fabric: FreeBlocks, asked: Asked) -> str:
    for wish in sorted(_wishes(asked), key=asked.wishes.__contains__, reverse=True):
        zone, most = _most(fabric, asked, wish)
        if most < wish.count:
            there = f"at most {most} {'is' if most == 1 else 'are'} free together (zone {zone})" if most else "none is free"
            return f"needs {wish.title}; {there}"
    return f"needs {asked.titles}; each is free somewhere, but not all in one machine"


def _most(fabric: FreeBlocks, asked: Asked, wish: Wish) -> tuple[str, int]:
    """In which zone most blocks for a wish are free in one place, and how many of them."""
    best = ("", 0)
    for zone, host in _unlike(fabric, asked):
        if host and wish.kind is BlockKind.CPU:
            continue
        count = _slices_there(fabric, host, wish, asked) if wish.sliced else _count(fabric.there(zone, host, wish), wish)
        best = max(best, (zone, count), key=lambda one: one[1])
    return best


def _count(blocks: Sequence[Block], wish: Wish) -> int:
    if wish.together is not Together.ISLAND:
        return len(blocks)
    return max((len(group) for name, group in _groups(blocks, lambda block: block.island).items() if name), default=0)


def _slices_there(fabric: FreeBlocks, host: str, wish: Wish, asked: Asked) -> int:
    count, cuts, chosen = 0, SliceCuts(fabric, host, asked.rank), dict[str, Block]()
    while count < wish.count and cuts.take(replace(wish, count=1, names=wish.names[count : count + 1]), chosen):
        count += 1
    return count
