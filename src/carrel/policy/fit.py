"""Which node a job goes to: best fit over nodes that are kept sorted, so that no job looks at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from carrel.domain.resources import Resources
from carrel.policy.rooms import Room

#: Free cpus, free memory, index of the room: the order in which rooms of one level are tried.
Entry = tuple[int, int, int]


class Shelf:
    """Rooms by how many GPUs of one type they have free.

    Level 0 holds the rooms without any GPU (only on the shelf of any type), level ``n + 1`` those with `n` free. Searching
    upwards leaves the emptiest nodes whole for jobs that need many GPUs, and keeps jobs without GPUs off GPU nodes.
    """

    __slots__ = ("_gpu_type", "_levels", "_most_memory")

    def __init__(self, gpu_type: str | None, rooms: Sequence[Room]) -> None:
        self._gpu_type = gpu_type
        most = max((room.free_of(gpu_type) for room in rooms), default=0)
        self._levels: list[list[Entry]] = [[] for _ in range(most + 2)]
        for room in rooms:
            level = self._level(room)
            if level is not None:
                level.append((room.cpus, room.memory, room.index))
        for level in self._levels:
            level.sort()
        # Upper bound of the free memory in rooms with so many free GPUs and cpus. Rooms only ever get fuller during
        # a placement, so a bound once found stays one, and what is above it need not be searched for again.
        self._most_memory: dict[tuple[int, int], int] = {}

    def _level(self, room: Room) -> list[Entry] | None:
        free = room.free_of(self._gpu_type)
        if free or self._gpu_type is None:
            return self._levels[free + 1 if room.all_gpus else 0]
        return None

    def add(self, room: Room) -> None:
        """Put `room` where it belongs now."""
        level = self._level(room)
        if level is not None:
            insort(level, (room.cpus, room.memory, room.index))

    def drop(self, room: Room) -> None:
        """Take `room` off; it has not changed since it was put."""
        level = self._level(room)
        if level is not None:
            del level[bisect_left(level, (room.cpus, room.memory, room.index))]

    def find(self, gpus: int, cpus: int, memory: int) -> int | None:
        """Return the index of the room that fits most tightly (GPUs, then cpus, then memory, then name), or None."""
        bound = self._most_memory.get((gpus, cpus))
        if bound is not None and memory > bound:
            return None
        lowest = gpus + 1 if gpus else 0
        levels = self._levels[lowest:]
        for level in levels:
            for place in range(bisect_left(level, (cpus, memory, -1)), len(level)):
                entry = level[place]
                if entry[1] >= memory:
                    return entry[2]
        most = -1
        for level in levels:
            for place in range(bisect_left(level, (cpus, -1, -1)), len(level)):
                most = max(most, level[place][1])
        self._most_memory[gpus, cpus] = most
        return None


class Fit:
    """All rooms, on one shelf per GPU type that somebody asks for."""

    def __init__(self, rooms: Sequence[Room]) -> None:
        self._rooms = rooms
        self._shelves: dict[str | None, Shelf] = {}
        self._withdrawn: Room | None = None

    def find(self, wanted: Resources) -> Room | None:
        """Return the room that `wanted` should go to now, or None."""
        shelf = self._shelves.get(wanted.gpu_type)
        if shelf is None:
            shelf = Shelf(wanted.gpu_type, [room for room in self._rooms if room is not self._withdrawn])
            self._shelves[wanted.gpu_type] = shelf
        index = shelf.find(wanted.gpus, wanted.cpus, wanted.memory)
        return None if index is None else self._rooms[index]

    def take(self, room: Room, wanted: Resources, ends_by: float) -> tuple[str, ...]:
        """Give `wanted` away in `room`; return the devices."""
        if room is self._withdrawn:
            return room.take(wanted, ends_by)
        for shelf in self._shelves.values():
            shelf.drop(room)
        devices = room.take(wanted, ends_by)
        for shelf in self._shelves.values():
            shelf.add(room)
        return devices

    def withdraw(self, room: Room) -> None:
        """Never find `room` again: somebody else decides who may go there. At most one room per placement."""
        for shelf in self._shelves.values():
            shelf.drop(room)
        self._withdrawn = room
