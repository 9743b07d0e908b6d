"""The blocks of a fabric, as they are seen by one who asks for a machine: which are free, and which of them come first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace

from carrel.core.domain.fabric import Block, BlockKind, Change, SliceProfile, Wish
from carrel.core.policy.slices import Room, best_start, room_of, still_fits

#: Where the lab's own blocks come, between those of the account and those that are lent.
LABS = 1
#: Names of blocks.
Names = Set[str]
NONE: Names = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one machine is to have, for whom."""

    wishes: tuple[Wish, ...]
    #: Its number; 0: it has none yet.
    number: int = 0
    #: Name of the machine, where a new one is made.
    machine: str
    #: Whose blocks are taken first, beside the lab's own.
    account: str = ""
    #: Seconds for which it is kept: blocks of others may be lent for so long, or not.
    time: int = 0
    #: Names of blocks with which it was tried and failed.
    avoid: Names = NONE

    def may_have(self, block: Block) -> bool:
        """True for the lab's own blocks, those of the account, and those that are lent for so long."""
        return block.owner in ("", self.account) or self.time <= block.lent > 0

    def rank(self, block: Block) -> int:
        """Those of the account come first, those that are lent last."""
        return LABS if not block.owner else 0 if block.owner == self.account else 2

    @property
    def titles(self) -> str:
        """ "2 GPUs and 1 drive"."""
        return " and ".join(wish.title for wish in self.wishes)

    @property
    def names_a_cpu(self) -> bool:
        """True when it says which CPU blocks it wants; otherwise one of any type is meant."""
        return any(wish.kind is BlockKind.CPU for wish in self.wishes)


class FreeBlocks:
    """The blocks, in the order in which one account would take them, and which are free."""

    def __init__(self, blocks: Sequence[Block], asked: Asked, taken: Names = NONE) -> None:
        """`taken` are the names of blocks that others have or are promised; a GPU stands for its slices, too."""
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
            usable = well and block.name not in taken and block.name not in asked.avoid and asked.may_have(block)
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
            return [gpu for gpu in self.gpus(host) if suits(gpu, wish)] if host else []
        return self.built_in(host, wish) if host else self.loose(zone, wish)

    def loose(self, zone: str, wish: Wish) -> list[Block]:
        """Free blocks of the zone that a machine can be given, and that the wish takes."""
        key = (zone, wish)
        if key not in self._found:
            self._found[key] = [block for block in self._loose[zone, wish.kind] if suits(block, wish)]
        return self._found[key]

    def built_in(self, host: str, wish: Wish) -> list[Block]:
        """Free whole blocks that are built into a machine, and that the wish takes."""
        return [block for block in self._fixed[host] if block.whole and suits(block, wish) and not self._in_use(block)]

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


def suits(block: Block, wish: Wish) -> bool:
    """Whether a block is of what the wish is for; of slices, whether they may be cut from it."""
    if wish.names and not wish.sliced:
        return block.name in wish.names
    enough = block.size >= wish.size and block.memory >= wish.memory
    return block.kind is wish.kind and (not wish.type or block.type == wish.type) and (wish.sliced or enough)


def projected(blocks: Sequence[Block], changes: Iterable[Change]) -> Sequence[Block]:
    """Return the blocks as they are when slices of these changes are there; nothing else can be made in their place."""
    slices = [change for change in changes if change.of]
    if not slices:
        return blocks
    there = {block.name: block for block in blocks}
    coming: dict[str, Block] = {}
    for change in slices:
        gpu = there.get(change.of)
        profile = None if gpu is None else gpu.profile_named(change.profile)
        if change.block not in there and gpu and profile:
            made = replace(gpu, name=change.block, size=profile.memory, fixed=False, profiles=())
            coming[change.block] = replace(made, of=gpu.name, profile=change.profile, start=change.start)
    return [*blocks, *coming.values()]
