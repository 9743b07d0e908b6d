"""Where slices of a GPU go: counters and placements, without a driver.

A GPU has so many compute slices and memory slices. A slice takes a run of memory slices that begins at one of the places that
the driver allows, and so many compute slices anywhere. The whole GPU takes all. (The model of NVIDIA's DRA driver for
Kubernetes, whose GPUs and slices consume shared counters; and of NVML's possible placements.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from carrel.core.domain.fabric import Block, FreeSlices, SliceProfile


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of one GPU."""

    compute: int
    #: Memory slices that nothing covers.
    memory: frozenset[int]

    def without(self, profile: SliceProfile, start: int) -> Room:
        """What is left when a slice begins there."""
        return Room(self.compute - profile.compute, self.memory - _covered(profile, start))

    def takes(self, profile: SliceProfile, start: int) -> bool:
        """True when a slice may begin there."""
        return profile.compute <= self.compute and _covered(profile, start) <= self.memory


def room_of(gpu: Block, slices: Iterable[Block]) -> Room:
    """Return what is left of a GPU beside these slices of it."""
    room = Room(gpu.compute_slices, frozenset(range(gpu.memory_slices)))
    for one in slices:
        profile = gpu.profile_named(one.profile)
        if profile is not None:
            room = room.without(profile, one.start)
    return room


def best_start(gpu: Block, room: Room, profile: SliceProfile) -> int | None:
    """Return the memory slice at which a slice hurts the least: the most of the largest profiles fit beside it afterwards.

    None where none fits.
    """
    return _best_start(gpu.profiles, room, profile)


def still_fits(gpu: Block, room: Room) -> tuple[int, ...]:
    """Return how many slices of each profile fit into what is left, the largest profile first."""
    return _still_fits(gpu.profiles, room)


def free_slices(blocks: Sequence[Block]) -> Sequence[FreeSlices]:
    """Return how many slices of each size can be had now, the smallest first; blocks say whether somebody has them."""
    found: dict[tuple[str, int, str], list[int]] = {}
    slices: dict[str, list[Block]] = {}
    for block in blocks:
        slices.setdefault(block.of, []).append(block)
    for gpu in blocks:
        mine = slices.get(gpu.name, [])
        staying = [one for one in mine if one.used or one.fault]
        counts = _still_fits(gpu.profiles, Room(0, frozenset()) if gpu.used or gpu.fault else room_of(gpu, staying))
        for profile, free in zip(_largest_first(gpu.profiles), counts, strict=True):
            if "+" in profile.name:
                continue
            sums = found.setdefault((gpu.type, profile.memory, profile.name), [0, 0])
            sums[0] += free
            sums[1] += sum(one.profile == profile.name and one.used for one in mine)
    return [
        FreeSlices(type=kind, profile=name, memory=memory, free=free, used=used)
        for (kind, memory, name), (free, used) in sorted(found.items())
    ]


def smallest_profile(profiles: Sequence[SliceProfile], size: int) -> SliceProfile | None:
    """Return the profile with the fewest slices that has so many bytes by its name; None where none has.

    Those with an extension ("1g.10gb+me", of which a GPU has one) are for whoever asks for them.
    """
    fitting = [one for one in profiles if one.nominal >= size and "+" not in one.name]
    return min(fitting, key=lambda one: (one.memory_slices, one.compute, one.memory), default=None)


# A fabric has many GPUs, and few that differ.
@lru_cache(maxsize=4096)
def _best_start(profiles: tuple[SliceProfile, ...], room: Room, profile: SliceProfile) -> int | None:
    starts = [start for start in profile.starts if room.takes(profile, start)]
    return max(starts, key=lambda start: (_still_fits(profiles, room.without(profile, start)), -start), default=None)


@lru_cache(maxsize=4096)
def _still_fits(profiles: tuple[SliceProfile, ...], room: Room) -> tuple[int, ...]:
    return tuple(_count(room, profile) for profile in _largest_first(profiles))


def _largest_first(profiles: Iterable[SliceProfile]) -> Sequence[SliceProfile]:
    return sorted(profiles, key=lambda one: (-one.memory_slices, -one.compute))


def _count(room: Room, profile: SliceProfile) -> int:
    found = 0
    for start in profile.starts:
        if room.takes(profile, start):
            room = room.without(profile, start)
            found += 1
    return found


def _covered(profile: SliceProfile, start: int) -> frozenset[int]:
    return frozenset(range(start, start + profile.memory_slices))
