"""EASY backfill: later jobs may start early if they do not delay the first job that is blocked.

Source of the idea: D. Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from carrel.domain.placement import Waiting
from carrel.domain.resources import Resources
from carrel.policy.rooms import Room


def earliest(wanted: Resources, rooms: Iterable[Room], now: float) -> tuple[float, Room] | None:
    """Return when and where `wanted` first fits if every job ends at its walltime and nothing else starts.

    None when it never fits. Ties go to the node with the fewest GPUs free at that moment, then to the first by name.
    """
    best: tuple[float, int, int] | None = None
    found: Room | None = None
    for room in rooms:
        if not room.could_hold(wanted):
            continue
        moment = _first_fit(wanted, room, now, best[0] if best else inf)
        if moment is not None:
            candidate = (*moment, room.index)
            if best is None or candidate < best:
                best, found = candidate, room
    return None if best is None or found is None else (best[0], found)


def _first_fit(wanted: Resources, room: Room, now: float, no_later: float) -> tuple[float, int] | None:
    """Return the first moment up to `no_later` at which `wanted` fits in `room`, and the GPUs free then."""
    cpus, memory, gpus = room.cpus, room.memory, room.free_of(wanted.gpu_type)
    if cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus:
        return now, gpus
    for release in sorted(room.releases):
        if release.at > no_later:
            return None
        cpus += release.cpus
        memory += release.memory
        gpus += len(release.gpus) if wanted.gpu_type is None else release.gpus.count(wanted.gpu_type)
        if cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus:
            return release.at, gpus
    return None


class Reservation:
    """The promise to the first blocked job: this node, at this moment."""

    def __init__(self, job: Waiting, at: float, room: Room) -> None:
        self.job = job
        self.at = at
        self.room = room
        # What will be free on the node at that moment.
        ended = [release for release in room.releases if release.at <= at]
        self._cpus = room.cpus + sum(release.cpus for release in ended)
        self._memory = room.memory + sum(release.memory for release in ended)
        self._gpus = Counter({name: len(uuids) for name, uuids in room.free.items()})
        for release in ended:
            self._gpus.update(release.gpus)

    def admits(self, wanted: Resources, ends_by: float) -> bool:
        """True when `wanted` fits on the reserved node now, and ends before it is needed or leaves enough beside it."""
        if not self.room.has_free(wanted):
            return False
        if ends_by <= self.at:
            return True
        mine = self.job.resources
        left = self._gpus.copy()
        left.subtract(dict(self.room.choose(wanted)))
        gpus = left.total() if mine.gpu_type is None else left[mine.gpu_type]
        return gpus >= mine.gpus and self._cpus - wanted.cpus >= mine.cpus and self._memory - wanted.memory >= mine.memory

    def note(self, wanted: Resources, ends_by: float) -> None:
        """Count in a job that is about to start on the node and that `admits` let through."""
        if ends_by > self.at:
            self._cpus -= wanted.cpus
            self._memory -= wanted.memory
            self._gpus.subtract(dict(self.room.choose(wanted)))
