"""What is left on each node while a placement is being made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from carrel.domain.node import Node
from carrel.domain.placement import Snapshot
from carrel.domain.resources import Resources


class Release(NamedTuple):
    """What a node gets back when a job ends."""

    #: Unix seconds; never before the present cycle (a job that is overdue ends now).
    at: float
    cpus: int
    memory: int
    #: The type of each device that can be given again.
    gpus: tuple[str, ...]


@dataclass(slots=True)
class Room:
    """One node that takes jobs. Mutable, and known only inside one placement."""

    #: Place in the order of names, which settles every tie.
    index: int
    name: str
    cpus: int
    memory: int
    #: Free devices by type, in node order.
    free: dict[str, list[str]]
    free_gpus: int
    #: What an idle node would offer.
    all_cpus: int
    all_memory: int
    all_gpus: dict[str, int]
    releases: list[Release] = field(default_factory=list)

    def free_of(self, gpu_type: str | None) -> int:
        """Number of free devices of a type, or of any type for None."""
        return self.free_gpus if gpu_type is None else len(self.free.get(gpu_type, ()))

    def has_free(self, wanted: Resources) -> bool:
        """True when `wanted` can start here now."""
        return self.cpus >= wanted.cpus and self.memory >= wanted.memory and self.free_of(wanted.gpu_type) >= wanted.gpus

    def could_hold(self, wanted: Resources) -> bool:
        """True when `wanted` could start here if nothing else ran."""
        gpus = sum(self.all_gpus.values()) if wanted.gpu_type is None else self.all_gpus.get(wanted.gpu_type, 0)
        return self.all_cpus >= wanted.cpus and self.all_memory >= wanted.memory and gpus >= wanted.gpus

    def choose(self, wanted: Resources) -> list[tuple[str, int]]:
        """Return how many devices of which type `wanted` would get here.

        A job that takes any type gets devices of one type if that is possible: the type with the fewest to spare.
        """
        if wanted.gpus == 0:
            return []
        if wanted.gpu_type is not None:
            return [(wanted.gpu_type, wanted.gpus)]
        enough = [(len(uuids), name) for name, uuids in self.free.items() if len(uuids) >= wanted.gpus]
        if enough:
            return [(min(enough)[1], wanted.gpus)]
        chosen: list[tuple[str, int]] = []
        missing = wanted.gpus
        for count, name in sorted(
            ((len(uuids), name) for name, uuids in self.free.items()), key=lambda item: (-item[0], item[1])
        ):
            if missing and count:
                chosen.append((name, min(count, missing)))
                missing -= min(count, missing)
        return chosen

    def take(self, wanted: Resources, ends_by: float) -> tuple[str, ...]:
        """Give `wanted` away until `ends_by`; return the devices. The caller has asked `has_free` before."""
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
        self.releases.append(Release(ends_by, wanted.cpus, wanted.memory, tuple(types)))
        return tuple(devices)


def rooms_of(snapshot: Snapshot, now: float) -> list[Room]:
    """Return a room for every node that is not drained, in the order of names, less what jobs hold there."""
    taken: set[str] = set()
    for held in snapshot.holding:
        taken.update(held.devices)
    types: dict[str, str] = {}
    rooms: list[Room] = []
    for node in sorted((node for node in snapshot.nodes if node.drained is None), key=lambda node: node.name):
        rooms.append(_room(len(rooms), node, taken, snapshot.withheld, types))
    by_name = {room.name: room for room in rooms}
    for held in snapshot.holding:
        room = by_name.get(held.node)
        if room is not None:
            wanted = held.resources
            room.cpus -= wanted.cpus
            room.memory -= wanted.memory
            gpus = tuple([types[uuid] for uuid in held.devices if uuid in types])
            room.releases.append(Release(max(held.ends_by, now), wanted.cpus, wanted.memory, gpus))
    return rooms


def _room(index: int, node: Node, taken: set[str], withheld: frozenset[str], types: dict[str, str]) -> Room:
    """Make the idle room of `node`, without its taken devices; note the type of every usable device in `types`."""
    free: dict[str, list[str]] = {}
    everything: dict[str, int] = {}
    count = 0
    for device in sorted(node.devices, key=lambda device: (device.index, device.uuid)):
        uuid, gpu_type = device.uuid, device.type
        if uuid in withheld:
            continue
        types[uuid] = gpu_type
        everything[gpu_type] = everything.get(gpu_type, 0) + 1
        if uuid not in taken:
            free.setdefault(gpu_type, []).append(uuid)
            count += 1
    return Room(index, node.name, node.cpus, node.memory, free, count, node.cpus, node.memory, everything)


def capacities(rooms: Sequence[Room]) -> list[Room]:
    """Return one room of each make: enough to ask what an idle node could hold, in a lab of many equal nodes."""
    makes: dict[object, Room] = {}
    for room in rooms:
        makes.setdefault((room.all_cpus, room.all_memory, frozenset(room.all_gpus.items())), room)
    return list(makes.values())
