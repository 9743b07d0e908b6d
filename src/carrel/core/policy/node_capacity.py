"""What is left on each node while a placement is being made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from carrel.core.domain.node import Device, Node
from carrel.core.domain.placement import Holding
from carrel.core.domain.resources import Resources


class Release(NamedTuple):
    """What a node gets back when a job ends."""

    #: Unix seconds. A job that is overdue ends now.
    at: float
    cpus: int
    memory: int
    #: The type of each device that can be given again.
    gpus: tuple[str, ...]


@dataclass(slots=True)
class NodeCapacity:
    """One node that takes jobs. Mutable, and known only inside one placement."""

    #: Place in the order of names, which settles every tie.
    index: int
    name: str
    cpus: int
    memory: int
    #: Free devices by type: those first from which the least has to be moved, then in node order.
    free: dict[str, list[str]]
    free_gpus: int
    #: What an idle node would offer.
    all_cpus: int
    all_memory: int
    all_gpus: dict[str, int]
    #: By the id of the job that holds it.
    releases: dict[int, Release] = field(default_factory=dict)
    #: Type of each device that can be given, by its uuid in the order of `free`.
    types: dict[str, str] = field(default_factory=dict)
    #: Bytes of idle sessions' state that have to move off a device first, by its uuid.
    moves: Mapping[str, int] = field(default_factory=dict)
    #: Bytes that each device of a type has at least.
    gpu_memory: dict[str, int] = field(default_factory=dict)

    def suits(self, gpu_type: str, wanted: Resources) -> bool:
        """True when `wanted` may be given devices of this type."""
        return wanted.gpu_type in (None, gpu_type) and self.gpu_memory[gpu_type] >= wanted.gpu_memory

    def suited(self, wanted: Resources) -> frozenset[str]:
        """Return the types here that `wanted` may be given devices of."""
        return frozenset(name for name in self.free if self.suits(name, wanted))

    def suited_of(self, types: Sequence[str], wanted: Resources) -> int:
        """Return how many of some devices, by their types, `wanted` may be given."""
        if wanted.gpu_memory:
            return sum(self.suits(gpu_type, wanted) for gpu_type in types)
        return len(types) if wanted.gpu_type is None else types.count(wanted.gpu_type)

    def free_of(self, wanted: Resources) -> int:
        """Number of free devices that `wanted` may be given."""
        if wanted.gpu_memory:
            return sum(len(uuids) for gpu_type, uuids in self.free.items() if self.suits(gpu_type, wanted))
        return self.free_gpus if wanted.gpu_type is None else len(self.free.get(wanted.gpu_type, ()))

    def all_of(self, wanted: Resources) -> int:
        """Number of devices that an idle node would offer to `wanted`."""
        if wanted.gpu_memory:
            return sum(count for gpu_type, count in self.all_gpus.items() if self.suits(gpu_type, wanted))
        return sum(self.all_gpus.values()) if wanted.gpu_type is None else self.all_gpus.get(wanted.gpu_type, 0)

    def has_free(self, wanted: Resources) -> bool:
        """True when `wanted` can start here now, or as much of it as goes to one node."""
        return self.cpus >= wanted.cpus and self.memory >= wanted.memory and self.free_of(wanted) >= wanted.gpus

    def could_hold(self, wanted: Resources) -> bool:
        """True when `wanted` could start here if nothing else ran."""
        enough = self.all_of(wanted) >= wanted.gpus
        return enough and self.all_cpus >= wanted.cpus and self.all_memory >= wanted.memory

    def choose(self, wanted: Resources) -> list[tuple[str, int]]:
        """Return how many devices of which type `wanted` would get here.

        A job that takes several types gets devices of one type if that is possible: the type whose devices the least has to
        be moved off, of those the one with the least memory where memory is asked for (the smallest slice that fits), and of
        those the one with the fewest to spare.
        """
        if wanted.gpus == 0:
            return []
        if wanted.gpu_type is not None:
            return [(wanted.gpu_type, wanted.gpus)]
        free = [(len(uuids), name) for name, uuids in self.free.items() if not wanted.gpu_memory or self.suits(name, wanted)]
        enough = [
            (self._moved(name, wanted.gpus), self.gpu_memory[name] if wanted.gpu_memory else 0, count, name)
            for count, name in free
            if count >= wanted.gpus
        ]
        if enough:
            return [(min(enough)[3], wanted.gpus)]
        chosen: list[tuple[str, int]] = []
        missing = wanted.gpus
        for count, name in sorted(free, key=lambda item: (-item[0], item[1])):
            if missing and count:
                chosen.append((name, min(count, missing)))
                missing -= min(count, missing)
        return chosen

    def _moved(self, gpu_type: str, number: int) -> int:
        """Bytes that are moved for a job that gets the first so many devices of a type."""
        return sum(self.moves.get(uuid, 0) for uuid in self.free[gpu_type][:number]) if self.moves else 0

    def take(self, job_id: int, wanted: Resources, ends_by: float) -> tuple[str, ...]:
        """Give `wanted` to a job until `ends_by`; return the devices. The caller has asked `has_free` before."""
        devices: list[str] = []
        types: list[str] = []
        for name, count in self.choose(wanted):
            uuids = self.free[name]
            devices += uuids[:count]
            types += [name] * count
            del uuids[:count]
        self.free_gpus -= wanted.gpus
        self.cpus -= wanted.cpus
        self.memory -= wanted.memory
        self.releases[job_id] = Release(ends_by, wanted.cpus, wanted.memory, tuple(types))
        return tuple(devices)

    def hold(self, job_id: int, wanted: Resources, devices: Sequence[str], ends_by: float) -> None:
        """A job has these devices already."""
        types = []
        for uuid in devices:
            gpu_type = self.types.get(uuid)
            if gpu_type is not None:
                types.append(gpu_type)
                self.free[gpu_type].remove(uuid)
        self.free_gpus -= len(types)
        self.cpus -= wanted.cpus
        self.memory -= wanted.memory
        self.releases[job_id] = Release(ends_by, wanted.cpus, wanted.memory, tuple(types))

    def give_back(self, job_id: int, devices: Sequence[str]) -> None:
        """A job is over that had these devices."""
        release = self.releases.pop(job_id)
        self.cpus += release.cpus
        self.memory += release.memory
        self.free_gpus += len(release.gpus)
        for gpu_type in set(release.gpus):
            free = {*self.free[gpu_type], *devices}
            self.free[gpu_type] = [uuid for uuid, one in self.types.items() if one == gpu_type and uuid in free]


def rooms_of(
    nodes: Iterable[Node], holding: Iterable[Holding], withheld: frozenset[str], moves: Mapping[str, int] | None = None
) -> list[NodeCapacity]:
    """Return a room for every node that is not drained, in the order of names, less drained GPUs and what jobs hold there.

    `moves` says how many bytes of idle sessions' state have to go from a device before a job has it.
    """
    ready = sorted((node for node in nodes if node.drained is None), key=lambda node: node.name)
    drained = {device.uuid for node in ready for device in node.devices if device.drained is not None}
    rooms = [_room(index, node, withheld | drained, moves or {}) for index, node in enumerate(ready)]
    by_name = {room.name: room for room in rooms}
    for held in holding:
        for share in held.shares:
            room = by_name.get(share.node)
            if room is not None:
                room.hold(held.id, held.resources, share.devices, held.over_by)
    return rooms


def suits(device: Device, wanted: Resources) -> bool:
    """True when `wanted` may be given this device."""
    return wanted.gpu_type in (None, device.type) and device.memory >= wanted.gpu_memory


def idle_room(node: Node) -> NodeCapacity:
    """Return what `node` would be if nothing ran on it, nothing of it were withheld, and it were not drained."""
    return _room(0, node, frozenset(), {})


def _room(index: int, node: Node, withheld: frozenset[str], moves: Mapping[str, int]) -> NodeCapacity:
    """Make the idle room of `node`."""
    types = {
        device.uuid: device.type
        for device in sorted(node.devices, key=lambda device: (moves.get(device.uuid, 0), device.index, device.uuid))
        if device.uuid not in withheld
    }
    free: dict[str, list[str]] = {}
    for uuid, gpu_type in types.items():
        free.setdefault(gpu_type, []).append(uuid)
    counts = {gpu_type: len(uuids) for gpu_type, uuids in free.items()}
    room = NodeCapacity(index, node.name, node.cpus, node.memory, free, len(types), node.cpus, node.memory, counts)
    room.types, room.moves = types, moves
    for device in node.devices:
        least = room.gpu_memory.get(device.type, device.memory)
        room.gpu_memory[device.type] = min(least, device.memory)
    return room
