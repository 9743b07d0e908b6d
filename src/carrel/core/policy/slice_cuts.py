"""How the GPUs of one machine are cut for what is asked for: idle slices first, then new ones where they spoil least."""

from __future__ import annotations

from collections.abc import Callable

from carrel.core.domain.fabric import Block, BlockKind, Wish, slice_name
from carrel.core.policy.free_blocks import FreeBlocks, suits
from carrel.core.policy.slices import smallest_profile, still_fits


class SliceCuts:
    """How the GPUs of one host are cut for what is asked for."""

    def __init__(self, fabric: FreeBlocks, host: str, rank: Callable[[Block], int]) -> None:
        self._fabric, self._rank = fabric, rank
        self._gpus = fabric.gpus(host) if host else []
        self.made: list[Block] = []
        #: Of each GPU: what is left of it beside the slices that stay, and whether there are none.
        self._left = {gpu.name: fabric.left_of(gpu) for gpu in self._gpus}

    def take(self, wish: Wish, chosen: dict[str, Block]) -> bool:
        """Choose slices for the wish: first those that lie idle, then new ones where they leave the most room."""
        for number in range(wish.count):
            found = self._one(wish, wish.names[number] if wish.names else "", chosen)
            if found is None:
                return False
            chosen[found.name] = found
        return True

    def _one(self, wish: Wish, name: str, chosen: dict[str, Block]) -> Block | None:
        gpus = [gpu for gpu in self._gpus if gpu.name not in chosen and suits(gpu, wish)]
        idle = [
            one
            for gpu in gpus
            for one in self._fabric.idle_slices(gpu.name)
            if one.name not in chosen and (one.name == name if name else _fits(gpu, one, wish))
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

    def gone(self, chosen: dict[str, Block]) -> list[Block]:
        """Idle slices that lie where new ones are to be, or on a GPU that is taken whole."""
        whole = [block for block in chosen.values() if block.profiles and not block.of]
        found = [one for gpu in whole for one in self._fabric.idle_slices(gpu.name)]
        for gpu in self._gpus:
            new = [one for one in self.made if one.of == gpu.name]
            if not new:
                continue
            room = self._left[gpu.name][0]
            for one in self._fabric.idle_slices(gpu.name):
                if one.name in chosen:
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
