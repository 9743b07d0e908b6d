"""How much is free in one node, and until when: what decides who can start at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from itertools import product
from math import inf

from carrel.core.policy.fit import Fit
from carrel.core.policy.line import Bulk
from carrel.core.policy.needs import Headroom, Needs
from carrel.core.policy.promises import Promises


def headroom(needs: Needs[Bulk], now: float, fit: Fit, promises: Promises) -> Sequence[Headroom]:
    """Return what is free `now` for those who wait there: a job that fits in none of it cannot start.

    A job on one node that fits can start, but for what is free where something is promised. What is too little for all of
    them is left out.
    """
    wanted, allowed_nodes = needs.wanted, needs.allowed_nodes
    gpus, cpus, memory, _, _ = needs.root.need
    windows = allowed_nodes.coming(now)
    special = promises.indexes.union(windows) if windows else promises.indexes
    free = fit.free_gpu_index(wanted, allowed_nodes).free(gpus, cpus, memory, special)
    rooms = [room for index in special if allowed_nodes.has(room := fit.rooms[index])]
    limited = [
        [(*most, windows.get(room.index, inf)) for most in promises.headroom(room, wanted)]
        for room in rooms
        if room.cpus >= cpus and room.memory >= memory and room.free_of(wanted) >= gpus
    ]
    if wanted.nodes > 1:
        return _together([[(*most, inf, inf)] for most in free] + limited, wanted.nodes)
    return [*_largest(free), *(most for room in limited for most in room)]


def _largest(free: Iterable[tuple[int, int, int]]) -> list[Headroom]:
    """Leave out what is no larger than another. Those with more GPUs come first, of these those with more cpus."""
    found: list[Headroom] = []
    level, last, best = -1, -1, -1
    for gpus, cpus, memory in free:
        if gpus != level or cpus > last:
            level, best = gpus, -1
        last = cpus
        if memory > best:
            best = memory
            if not any(cpus <= other[1] and memory <= other[2] for other in found):
                found.append((gpus, cpus, memory, inf, inf))
    return found


def _together(rooms: Sequence[Sequence[Headroom]], nodes: int) -> list[Headroom]:
    """What so many rooms have at least, until any two moments that matter (each may come from another room)."""
    found: list[Headroom] = []
    if len(rooms) < nodes:
        return found
    moments = [{one[part] for room in rooms for one in room} for part in (3, 4)]
    for over_by, gone_by in product(*moments):
        there = [[one for one in room if one[3] >= over_by and one[4] >= gone_by] for room in rooms]
        gpus, cpus, memory = ([max(one[part] for one in room) for room in there if room] for part in range(3))
        if len(gpus) >= nodes:
            most = [int(nlargest(nodes, values)[-1]) for values in (gpus, cpus, memory)]
            found.append((most[0], most[1], most[2], over_by, gone_by))
    return found
