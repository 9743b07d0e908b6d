"""Which node a job goes to: best fit over nodes that are kept sorted, so that no job looks at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from math import inf

from carrel.core.domain.placement import Holding
from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes, Place
from carrel.core.policy.node_capacity import NodeCapacity

#: Free cpus, free memory, index of the room: the order in which rooms of one level are tried.
Entry = tuple[int, int, int]


class FreeGpuIndex:
    """Rooms of one partition by how many GPUs of one type they have free.

    Level 0 holds the rooms without any GPU (only in the index of any type), level ``n + 1`` those with `n` free. Searching
    upwards leaves the emptiest nodes whole for jobs that need many GPUs, and keeps jobs without GPUs off GPU nodes.
    """

    __slots__ = ("_any", "_levels", "_most_memory", "_wanted")

    def __init__(self, wanted: Resources, rooms: Sequence[NodeCapacity]) -> None:
        """For all that ask for the same GPUs as `wanted`, however many."""
        self._wanted = wanted
        self._any = wanted.gpu_type is None and wanted.gpu_memory == 0
        most = max((room.all_of(wanted) for room in rooms), default=0)
        self._levels: list[list[Entry]] = [[] for _ in range(most + 2)]
        for room in rooms:
            level = self._level(room)
            if level is not None:
                level.append((room.cpus, room.memory, room.index))
        for level in self._levels:
            level.sort()
        # Upper bound of the free memory in rooms with so many free GPUs and cpus. Until somebody gives something back rooms
        # only get fuller, so a bound once found stays one, and what is above it need not be searched for again.
        self._most_memory: dict[tuple[int, int], int] = {}

    def _level(self, room: NodeCapacity) -> list[Entry] | None:
        free = room.free_of(self._wanted)
        if free or self._any:
            return self._levels[free + 1 if room.all_gpus else 0]
        return None

    def add(self, room: NodeCapacity) -> None:
        """Put `room` where it belongs now."""
        level = self._level(room)
        if level is not None:
            insort(level, (room.cpus, room.memory, room.index))

    def drop(self, room: NodeCapacity) -> None:
        """Take `room` off; it has not changed since it was put."""
        level = self._level(room)
        if level is not None:
            del level[bisect_left(level, (room.cpus, room.memory, room.index))]

    def find(self, wanted: Resources, but: AbstractSet[int]) -> list[int]:
        """Return the indexes of the rooms that fit most tightly (GPUs, then cpus, then memory, then name).

        As many as `wanted` has nodes, or fewer where there are no more. Those in `but` are passed over.
        """
        gpus, cpus, memory = wanted.gpus, wanted.cpus, wanted.memory
        found: list[int] = []
        bound = self._most_memory.get((gpus, cpus))
        if bound is not None and memory > bound:
            return found
        most = -1
        for level in self._levels[gpus + 1 if gpus else 0 :]:
            for place in range(bisect_left(level, (cpus, -1, -1)), len(level)):
                entry = level[place]
                if entry[1] >= memory and entry[2] not in but:
                    found.append(entry[2])
                    if len(found) == wanted.nodes:
                        return found
                most = max(most, entry[1])
        self._most_memory[gpus, cpus] = most
        return found

    def grew(self) -> None:
        """Some room has more than before."""
        self._most_memory.clear()


class Fit:
    """All rooms, in one index per partition and GPU type that somebody asks for."""

    def __init__(self, rooms: Sequence[NodeCapacity]) -> None:
        self.rooms = rooms
        #: How much memory GPUs have here. Who asks for something in between is served like those who ask for the next.
        self.levels = sorted({memory for room in rooms for memory in room.gpu_memory.values()})
        self._free_gpu_indexes: dict[tuple[Place, str | None, float], FreeGpuIndex] = {}
        #: Those that each room is on.
        self._on: list[list[FreeGpuIndex]] = [[] for _ in rooms]

    def find(self, wanted: Resources, allowed_nodes: AllowedNodes, but: AbstractSet[int] = frozenset()) -> list[NodeCapacity]:
        """Return the rooms that `wanted` should go to now; fewer than it has nodes when there is not enough.

        Those in `but` (by index) are passed over: somebody else decides who goes there, or nobody may.
        """
        return [self.rooms[index] for index in self.free_gpu_index(wanted, allowed_nodes).find(wanted, but)]

    def free_gpu_index(self, wanted: Resources, allowed_nodes: AllowedNodes) -> FreeGpuIndex:
        """Return the rooms of allowed nodes as they are to those who ask for GPUs like those of `wanted`."""
        key = (allowed_nodes.place, wanted.gpu_type, self.level(wanted.gpu_memory))
        free_gpu_index = self._free_gpu_indexes.get(key)
        if free_gpu_index is None:
            free_gpu_index = self._free_gpu_indexes[key] = FreeGpuIndex(wanted, allowed_nodes.rooms)
            for room in allowed_nodes.rooms:
                self._on[room.index].append(free_gpu_index)
        return free_gpu_index

    def level(self, gpu_memory: int) -> float:
        """Return the memory that GPUs have which somebody gets who asks for so much; infinite where none has as much."""
        if not gpu_memory:
            return 0
        place = bisect_left(self.levels, gpu_memory)
        return self.levels[place] if place < len(self.levels) else inf

    def take(self, room: NodeCapacity, job_id: int, wanted: Resources, ends_by: float) -> tuple[str, ...]:
        """Give `wanted` in `room` to a job; return the devices."""
        indexes_of_it = self._on[room.index]
        for free_gpu_index in indexes_of_it:
            free_gpu_index.drop(room)
        devices = room.take(job_id, wanted, ends_by)
        for free_gpu_index in indexes_of_it:
            free_gpu_index.add(room)
        return devices

    def hold(self, room: NodeCapacity, held: Holding, devices: Sequence[str]) -> None:
        """A job has these devices in `room` already."""
        indexes_of_it = self._on[room.index]
        for free_gpu_index in indexes_of_it:
            free_gpu_index.drop(room)
        room.hold(held.id, held.resources, devices, held.over_by)
        for free_gpu_index in indexes_of_it:
            free_gpu_index.add(room)

    def give_back(self, room: NodeCapacity, job_id: int, devices: Sequence[str]) -> None:
        """A job in `room` is over that had these devices."""
        indexes_of_it = self._on[room.index]
        for free_gpu_index in indexes_of_it:
            free_gpu_index.drop(room)
        room.give_back(job_id, devices)
        for free_gpu_index in indexes_of_it:
            free_gpu_index.add(room)
            free_gpu_index.grew()
