"""Which blocks a machine gets: a plan is worked out from what the fabric has and what is asked for, and nothing is done.

A machine is made around a free CPU block of a zone, or it is one that stands already (a host), with blocks built into it. All
its blocks are of one zone. Slices are cut from GPUs that are built into a host, so that several people may have slices of one
GPU; slices in use stay where they are. Nothing that is in use is ever part of a plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from carrel.core.domain.fabric import Block, BlockKind, Change, SliceProfile, Step, Together, Wish, nominal, slice_name
from carrel.core.policy.slices import Room, best_start, room_of, smallest_profile, still_fits

#: Where the lab's own blocks come, between those of the account and those that are lent.
_LABS = 1
#: Names of blocks.
Names = Set[str]
_NONE: Names = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a machine comes to be."""

    zone: str
    machine: str
    #: Names of the blocks that it has then, beside those that are built into it for all.
    blocks: tuple[str, ...]
    #: In the order in which they are done.
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """Why there is no plan now."""

    message: str
    #: False where not even a fabric that is free and well has it.
    possible: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one machine is to have, for whom."""

    wishes: tuple[Wish, ...]
    #: Name of the machine, where a new one is made.
    machine: str
    #: Whose blocks are taken first, beside the lab's own.
    account: str = ""
    #: Seconds for which it is kept: blocks of others may be lent for so long, or not.
    time: int = 0

    def may_have(self, block: Block) -> bool:
        """True for the lab's own blocks, those of the account, and those that are lent for so long."""
        return block.owner in ("", self.account) or self.time <= block.lent > 0

    def rank(self, block: Block) -> int:
        """Those of the account come first, those that are lent last."""
        return _LABS if not block.owner else 0 if block.owner == self.account else 2

    @property
    def names_a_cpu(self) -> bool:
        """True when it says which CPU blocks it wants; otherwise one of any type is meant."""
        return any(wish.kind is BlockKind.CPU for wish in self.wishes)


def plan(blocks: Sequence[Block], asked: Asked, *, taken: Names = _NONE, avoid: Names = _NONE) -> Plan | Shortage:
    """Return the plan that leaves most for others, or why there is none.

    `taken` are the names of blocks that others have or are promised (a GPU stands for its slices, too), `avoid` those with which
    it was tried and failed.
    """
    fabric = _Fabric(blocks, asked, taken, avoid)
    found = min(_plans(fabric, asked), key=lambda one: one[0], default=None)
    if found is not None:
        return found[1]
    whole = ever(blocks, asked, avoid=avoid)
    return whole if isinstance(whole, Shortage) else Shortage(message=_not_now(fabric, asked), possible=True)


def ever(blocks: Sequence[Block], asked: Asked, *, avoid: Names = _NONE) -> Plan | Shortage:
    """Return the plan as if all were free and well, or why the fabric never has it."""
    whole = _free(blocks, asked, avoid)
    found = next(_plans(whole, asked), None)
    return found[1] if found is not None else Shortage(message=_never(whole, asked), possible=False)


def wanted(blocks: Sequence[Block], asked: Asked, *, taken: Names = _NONE, avoid: Names = _NONE) -> frozenset[str]:
    """Return the free blocks of which one that waits may get some: those who came later do not get them."""
    fabric, whole = _Fabric(blocks, asked, taken, avoid), _free(blocks, asked, avoid)
    found: set[str] = set()
    for zone, host in _places(fabric, asked):
        if _composed(whole, asked, zone, host) is None:
            continue  # it would not come together there even if all were free
        for wish in asked.wishes if host else _wishes(asked):
            found |= {block.name for block in fabric.there(zone, host, wish)}
    return frozenset(found)


def _free(blocks: Sequence[Block], asked: Asked, avoid: Names) -> _Fabric:
    """The fabric as it is when all of it is free and well."""
    free = [replace(block, fault="", seen=True, machine=block.machine if block.fixed else "") for block in blocks]
    return _Fabric(free, asked, avoid=avoid)


def earliest(
    blocks: Sequence[Block], asked: Asked, holders: Sequence[tuple[float, Names]], *, avoid: Names = _NONE
) -> float | None:
    """Return the moment at which there is a plan, when what others have comes back at the moments in `holders`; None: never.

    A moment is infinite for what comes back when its owner wishes.
    """
    ordered = sorted(holders, key=lambda one: one[0])
    first, last = 0, len(ordered)
    while first <= last:  # what has come back stays back: the first moment is found by halves
        middle = (first + last) // 2
        taken = frozenset[str]().union(*(names for _, names in ordered[middle:]))
        if isinstance(plan(blocks, asked, taken=taken, avoid=avoid), Plan):
            last = middle - 1
        else:
            first = middle + 1
    if first == 0 or first > len(ordered):
        return 0.0 if first == 0 else None
    return ordered[first - 1][0]


class _Fabric:
    """The blocks, in the order in which one account would take them, and which are free."""

    def __init__(self, blocks: Sequence[Block], asked: Asked, taken: Names = _NONE, avoid: Names = _NONE) -> None:
        self._taken = taken
        self.slices: dict[str, list[Block]] = defaultdict(list)
        self._loose: dict[tuple[str, BlockKind], list[Block]] = defaultdict(list)
        self._fixed: dict[str, list[Block]] = defaultdict(list)
        self.zones: dict[str, None] = {}
        #: The zone of each machine that stands already.
        self.hosts: dict[str, str] = {}
        for block in blocks:
            if block.of:
                self.slices[block.of].append(block)
        for block in sorted(blocks, key=lambda one: (asked.rank(one), one.size, one.type, one.name)):
            self.zones[block.zone] = None
            well = not block.fault and block.seen
            if block.fixed and block.kind is BlockKind.CPU and well:
                self.hosts[block.machine] = block.zone
            usable = well and block.name not in taken and block.name not in avoid and asked.may_have(block)
            if block.of or not usable:
                continue
            if block.fixed and block.kind is not BlockKind.CPU:
                self._fixed[block.machine].append(block)
            elif not block.fixed and not block.machine:
                self._loose[block.zone, block.kind].append(block)
        self._found: dict[tuple[str, Wish], list[Block]] = {}
        self._cuts: dict[tuple[int, str, Room], tuple[int, tuple[int, ...]] | None] = {}

    def there(self, zone: str, host: str, wish: Wish) -> list[Block]:
        """Free blocks that a machine of the zone can have. A host is shared: nothing is added to it."""
        if wish.sliced:
            return [gpu for gpu in self.gpus(host) if _suits(gpu, wish)] if host else []
        return self.built_in(host, wish) if host else self.loose(zone, wish)

    def loose(self, zone: str, wish: Wish) -> list[Block]:
        """Free blocks of the zone that a machine can be given, and that the wish takes."""
        key = (zone, wish)
        if key not in self._found:
            self._found[key] = [block for block in self._loose[zone, wish.kind] if _suits(block, wish)]
        return self._found[key]

    def built_in(self, host: str, wish: Wish) -> list[Block]:
        """Free whole blocks that are built into a machine, and that the wish takes."""
        return [block for block in self._fixed[host] if block.whole and _suits(block, wish) and not self._in_use(block)]

    def gpus(self, host: str) -> list[Block]:
        """GPUs of a machine of which slices can be had."""
        return [block for block in self._fixed[host] if block.profiles]

    def used_slices(self, gpu: str) -> list[Block]:
        """Slices of a GPU that somebody has."""
        return [one for one in self.slices[gpu] if one.name in self._taken]

    def idle_slices(self, gpu: str) -> list[Block]:
        """Slices of a GPU that are there, well, and free."""
        return [one for one in self.slices[gpu] if one.name not in self._taken and not one.fault]

    def left_of(self, gpu: Block) -> tuple[Room, bool]:
        """What is left of a GPU beside slices that somebody has or that are faulty, which stay; True where there are none."""
        staying = [one for one in self.slices[gpu.name] if one.fault or one.name in self._taken]
        return room_of(gpu, staying), not staying

    def cut_of(self, gpu: Block, room: Room, profile: SliceProfile) -> tuple[int, tuple[int, ...]] | None:
        """Where a slice begins best, and how little fits beside it then (smaller is better); None where it has no room."""
        key = (id(gpu.profiles), profile.name, room)
        if key not in self._cuts:
            start = best_start(gpu, room, profile)
            after = () if start is None else tuple(-count for count in still_fits(gpu, room.without(profile, start)))
            self._cuts[key] = None if start is None else (start, after)
        return self._cuts[key]

    def signature(self, host: str, rank: Callable[[Block], int]) -> object:
        """What is the same for machines that are as good as each other."""
        places: dict[tuple[str, str], int] = {}
        return tuple(
            (
                (one.kind, one.type, one.size, one.memory, one.whole, rank(one), one.profiles),
                (self.left_of(one), self._in_use(one), bool(one.island)),
                tuple((each.profile, each.start) for each in self.idle_slices(one.name)) if one.profiles else (),
                places.setdefault(("island", one.island), len(places)),
                places.setdefault(("rack", one.rack), len(places)),
            )
            for one in self._fixed[host]
        )

    def _in_use(self, gpu: Block) -> bool:
        return bool(self.used_slices(gpu.name))


def _suits(block: Block, wish: Wish) -> bool:
    if wish.names and not wish.sliced:
        return block.name in wish.names
    enough = block.size >= wish.size and block.memory >= wish.memory
    return block.kind is wish.kind and (not wish.type or block.type == wish.type) and (wish.sliced or enough)


def _wishes(asked: Asked) -> Sequence[Wish]:
    return asked.wishes if asked.names_a_cpu else (Wish(kind=BlockKind.CPU), *asked.wishes)


#: What tells a better plan from a worse one: whose blocks it has, a shared machine, changes and blocks left beside it, how GPUs
#: are cut, its place.
_Rank = tuple[int, int, int, tuple[int, ...], str, str]


def _places(fabric: _Fabric, asked: Asked) -> Iterator[tuple[str, str]]:
    """Where a machine may be: a zone and no host, or a zone and the host there."""
    if not any(wish.sliced for wish in asked.wishes):
        yield from ((zone, "") for zone in fabric.zones)
    if not asked.names_a_cpu:
        yield from ((zone, host) for host, zone in fabric.hosts.items())


def _unlike(fabric: _Fabric, asked: Asked) -> Iterator[tuple[str, str]]:
    """The same without machines that are as good as one before: a fabric has many, and few that differ."""
    seen: set[object] = set()
    named = any(wish.names for wish in asked.wishes)
    for zone, host in sorted(_places(fabric, asked)):
        alike = fabric.signature(host, asked.rank) if host and not named else (zone, host)
        if alike not in seen:
            seen.add(alike)
            yield zone, host


def _plans(fabric: _Fabric, asked: Asked) -> Iterator[tuple[_Rank, Plan]]:
    for zone, host in _unlike(fabric, asked):
        found = _composed(fabric, asked, zone, host)
        if found is not None:
            yield found


def _composed(fabric: _Fabric, asked: Asked, zone: str, host: str) -> tuple[_Rank, Plan] | None:
    """What the machine gets in this zone; with `host`, the machine that stands there."""
    machine, chosen, cuts = host or asked.machine, _Chosen(), _Cuts(fabric, host, asked.rank)
    left = 0
    # The rarest first: what is named, then the largest slices, which find no room after smaller ones.
    wishes = asked.wishes if host else _wishes(asked)
    for wish in sorted(wishes, key=lambda one: (not one.names, one.sliced, -(one.size or nominal(one.profile)))):
        if wish.sliced:
            if not cuts.take(wish, chosen):
                return None
            continue
        there = [block for block in fabric.there(zone, host, wish) if block.name not in chosen.names]
        picked = _together(there, wish, asked.rank)
        if picked is None:
            return None
        left += len(there) - len(picked)
        chosen.blocks += picked
    changes = [
        *(_slice_change(Step.DESTROY_SLICE, one) for one in cuts.gone(chosen)),
        *(_slice_change(Step.CREATE_SLICE, one) for one in cuts.made),
        *(
            Change(step=Step.ATTACH, block=block.name, machine=machine)
            for block in sorted(chosen.blocks, key=lambda one: one.kind is not BlockKind.CPU)
            if not host
        ),
    ]
    made = Plan(zone=zone, machine=machine, blocks=tuple(block.name for block in chosen.blocks), changes=tuple(changes))
    # A host is shared: whole blocks make a machine of their own where they can.
    shared, lent = int(bool(host)), sum(asked.rank(block) - _LABS for block in chosen.blocks)
    return (lent, shared, len(changes) + left, cuts.spoilt(), zone, host), made


def _slice_change(step: Step, one: Block) -> Change:
    return Change(step=step, block=one.name, of=one.of, profile=one.profile, start=one.start)


@dataclass(slots=True)
class _Chosen:
    blocks: list[Block] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        return {block.name for block in self.blocks}


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


class _Cuts:
    """How the GPUs of one host are cut for what is asked for."""

    def __init__(self, fabric: _Fabric, host: str, rank: Callable[[Block], int]) -> None:
        self._fabric, self._rank = fabric, rank
        self._gpus = fabric.gpus(host) if host else []
        self.made: list[Block] = []
        #: Of each GPU: what is left of it beside the slices that stay, and whether there are none.
        self._left = {gpu.name: fabric.left_of(gpu) for gpu in self._gpus}

    def take(self, wish: Wish, chosen: _Chosen) -> bool:
        """Choose slices for the wish: first those that lie idle, then new ones where they leave the most room."""
        for number in range(wish.count):
            found = self._one(wish, wish.names[number] if wish.names else "", chosen)
            if found is None:
                return False
            chosen.blocks.append(found)
        return True

    def _one(self, wish: Wish, name: str, chosen: _Chosen) -> Block | None:
        gpus = [gpu for gpu in self._gpus if gpu.name not in chosen.names and _suits(gpu, wish)]
        idle = [
            one
            for gpu in gpus
            for one in self._fabric.idle_slices(gpu.name)
            if one.name not in chosen.names and (one.name == name if name else _fits(gpu, one, wish))
            if self._lies_free(gpu, one)
        ]
        if idle:
            best = min(idle, key=lambda one: (self._rank(one), one.size, not self._fabric.used_slices(one.of), one.name))
            self._stays(next(gpu for gpu in gpus if gpu.name == best.of), best)
            return best
        options, seen = [], set[object]()
        for gpu in gpus if not name else ():
            room, fresh = self._left[gpu.name]
            alike = (self._rank(gpu), gpu.type, id(gpu.profiles), room, fresh)
            if alike in seen:
                continue  # the first by name is as good
            seen.add(alike)
            profile = gpu.profile_named(wish.profile) if wish.profile else smallest_profile(gpu.profiles, wish.size)
            if profile is None or profile.nominal < wish.size:
                continue
            cut = self._fabric.cut_of(gpu, room, profile)
            if cut is None:
                continue
            start, after = cut
            # Whose it is, the smallest slice, then a GPU that is cut already, then the one where least is spoilt.
            rank = (self._rank(gpu), profile.memory_slices, profile.memory, fresh, after, gpu.name)
            options.append((rank, gpu, profile, start))
        if not options:
            return None
        _, gpu, profile, start = min(options, key=lambda one: one[0])
        made = Block(
            name=slice_name(gpu.name, profile.name, start),
            kind=BlockKind.GPU,
            zone=gpu.zone,
            type=gpu.type,
            size=profile.memory,
            owner=gpu.owner,
            lent=gpu.lent,
            machine=gpu.machine,
            of=gpu.name,
            profile=profile.name,
            start=start,
        )
        self.made.append(made)
        self._stays(gpu, made)
        return made

    def _stays(self, gpu: Block, one: Block) -> None:
        profile = gpu.profile_named(one.profile)
        if profile is not None:
            self._left[gpu.name] = self._left[gpu.name][0].without(profile, one.start), False

    def _lies_free(self, gpu: Block, one: Block) -> bool:
        """Whether an idle slice can stay beside those that are to be made."""
        profile = gpu.profile_named(one.profile)
        return profile is not None and self._left[gpu.name][0].takes(profile, one.start)

    def gone(self, chosen: _Chosen) -> list[Block]:
        """Idle slices that lie where new ones are to be, or on a GPU that is taken whole."""
        whole = [block for block in chosen.blocks if block.profiles and not block.of]
        found = [one for gpu in whole for one in self._fabric.idle_slices(gpu.name)]
        for gpu in self._gpus:
            new = [one for one in self.made if one.of == gpu.name]
            if not new:
                continue
            room = self._left[gpu.name][0]
            for one in self._fabric.idle_slices(gpu.name):
                if one.name in chosen.names:
                    continue
                profile = gpu.profile_named(one.profile)
                if profile is not None and room.takes(profile, one.start):
                    room = room.without(profile, one.start)
                else:
                    found.append(one)
        return found

    def spoilt(self) -> tuple[int, ...]:
        """How little fits afterwards on the GPUs that were cut: smaller is better."""
        cut = [gpu for gpu in self._gpus if any(one.of == gpu.name for one in self.made)]
        fresh = sum(1 for gpu in cut if not self._fabric.used_slices(gpu.name))
        return (fresh, *(-count for gpu in cut for count in still_fits(gpu, self._left[gpu.name][0])))


def _fits(gpu: Block, one: Block, wish: Wish) -> bool:
    if wish.profile:
        return one.profile == wish.profile
    profile = smallest_profile(gpu.profiles, wish.size)
    # A larger one that lies idle is not taken for a smaller wish: it would be cut anew for nothing, and is missed by others.
    return profile is not None and one.profile == profile.name


def _never(whole: _Fabric, asked: Asked) -> str:
    for wish in sorted(_wishes(asked), key=asked.wishes.__contains__, reverse=True):
        zone, most = _most(whole, asked, wish)
        if most < wish.count:
            where = f"in one zone ({zone})" if most else "in any zone"
            return f"asked for {wish.title}; the fabric has {most or 'none'} that fit{'' if most else 's'} {where}"
    titles = " and ".join(wish.title for wish in asked.wishes)
    return f"asked for {titles}; no zone of the fabric has all of them"


def _not_now(fabric: _Fabric, asked: Asked) -> str:
    for wish in sorted(_wishes(asked), key=asked.wishes.__contains__, reverse=True):
        zone, most = _most(fabric, asked, wish)
        if most < wish.count:
            there = f"at most {most} {'is' if most == 1 else 'are'} free together (zone {zone})" if most else "none is free"
            return f"needs {wish.title}; {there}"
    titles = " and ".join(wish.title for wish in asked.wishes)
    return f"needs {titles}; each is free somewhere, but not all in one machine"


def _most(fabric: _Fabric, asked: Asked, wish: Wish) -> tuple[str, int]:
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


def _slices_there(fabric: _Fabric, host: str, wish: Wish, asked: Asked) -> int:
    count, cuts, chosen = 0, _Cuts(fabric, host, asked.rank), _Chosen()
    while count < wish.count and cuts.take(replace(wish, count=1, names=wish.names[count : count + 1]), chosen):
        count += 1
    return count
