"""What will be left on a node, moment by moment, if everything ends as it should and every promise is kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import inf
from operator import attrgetter

from carrel.core.domain.resources import Resources
from carrel.core.policy.node_capacity import NodeCapacity, Release

#: The first and the last moment at which something may start.
Opening = tuple[float, float]


class Left:
    """What will be free in one room at some moment beside what is promised there.

    GPUs are counted by who may have them: those of one type, those with enough memory, all. A promise counts where everything
    that it may have is in; so one for any type counts in the whole alone, and leaves each type to those who ask for it.
    """

    __slots__ = ("_cpus", "_free", "_memory", "_promised", "_spare", "at")

    def __init__(self, room: NodeCapacity, at: float, promised: Iterable[Resources]) -> None:
        self.at = at
        self._cpus, self._memory = room.cpus, room.memory
        self._free = {name: len(uuids) for name, uuids in room.free.items()}
        for release in room.releases.values():
            if release.at <= at:
                self.gain(release)
        self._promised: list[tuple[frozenset[str], int]] = []
        self._spare: dict[frozenset[str], int] = {}
        for wanted in promised:
            self.promise(room, wanted)

    def copy(self, at: float) -> Left:
        """Return the same for another moment."""
        other = Left.__new__(Left)
        other.at, other._cpus, other._memory = at, self._cpus, self._memory
        other._free, other._promised, other._spare = dict(self._free), list(self._promised), dict(self._spare)
        return other

    def gain(self, release: Release) -> None:
        """Somebody has given something back."""
        self._cpus += release.cpus
        self._memory += release.memory
        for name in release.gpus:
            self._free[name] += 1

    def could_promise(self, wanted: Resources, types: frozenset[str]) -> bool:
        """True when `wanted`, which may have GPUs of these types, could be promised too."""
        if self._cpus < wanted.cpus or self._memory < wanted.memory:
            return False
        if not wanted.gpus:
            return True
        if types not in self._spare and self._spare_of(types) < wanted.gpus:
            return False
        return all(spare >= wanted.gpus for more, spare in self._spare.items() if types <= more)

    def promise(self, room: NodeCapacity, wanted: Resources) -> None:
        """`wanted` is promised too."""
        self._cpus -= wanted.cpus
        self._memory -= wanted.memory
        if not wanted.gpus:
            return
        types = room.suited(wanted)
        if types not in self._spare:
            self._spare[types] = self._spare_of(types)
        self._promised.append((types, wanted.gpus))
        for more in self._spare:
            if types <= more:
                self._spare[more] -= wanted.gpus

    def holds_beside(self, other: Resources, taken: dict[str, int]) -> bool:
        """True when all that is promised is there then although `other` had taken so many GPUs of each type now."""
        if self._cpus < other.cpus or self._memory < other.memory:
            return False
        return all(spare >= sum(count for name, count in taken.items() if name in types) for types, spare in self._spare.items())

    def lose(self, other: Resources, taken: dict[str, int]) -> None:
        """`other` takes so much now, and is still there then."""
        self._cpus -= other.cpus
        self._memory -= other.memory
        for name, count in taken.items():
            self._free[name] -= count
            for types in self._spare:
                if name in types:
                    self._spare[types] -= count

    def _spare_of(self, types: frozenset[str]) -> int:
        free = sum(self._free[name] for name in types)
        return free - sum(gpus for others, gpus in self._promised if others <= types)


class Profile:
    """What will be left in one room, from one moment to the next, beside what is promised there."""

    def __init__(self, room: NodeCapacity, now: float) -> None:
        self._room = room
        #: Each holds until the moment of the next.
        self._lefts = [Left(room, now, ())]
        for release in sorted(release for release in room.releases.values() if release.at > now):
            if self._lefts[-1].at < release.at:
                self._lefts.append(self._lefts[-1].copy(release.at))
            self._lefts[-1].gain(release)

    def promise(self, wanted: Resources, at: float, until: float) -> None:
        """`wanted` is promised from one moment to another."""
        self._split(at)
        self._split(until)
        for left in self._lefts:
            if at <= left.at < until:
                left.promise(self._room, wanted)

    def openings(self, wanted: Resources, seconds: float) -> list[Opening]:
        """Return when `wanted` may start for so many seconds, in order."""
        types = self._room.suited(wanted)
        found: list[Opening] = []
        begin: float | None = None
        for left in self._lefts:
            if left.could_promise(wanted, types):
                begin = left.at if begin is None else begin
            elif begin is not None:
                if left.at - seconds >= begin:
                    found.append((begin, left.at - seconds))
                begin = None
        if begin is not None:
            found.append((begin, inf))
        return found

    def _split(self, at: float) -> None:
        place = bisect_left(self._lefts, at, key=_moment)
        if place and (place == len(self._lefts) or self._lefts[place].at != at):
            self._lefts.insert(place, self._lefts[place - 1].copy(at))


_moment = attrgetter("at")
