"""When and where a blocked job fits, and who may start before it without delaying it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from math import inf

from carrel.core.domain.node import NodePart
from carrel.core.domain.placement import Waiting
from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes
from carrel.core.policy.fit import Fit
from carrel.core.policy.node_capacity import NodeCapacity
from carrel.core.policy.promises import Promises

#: How long a job is expected to run, and after how long it is gone at the latest: seconds.
Times = tuple[float, int]
#: A moment, and the rooms.
Slot = tuple[float, Sequence[NodeCapacity]]


def earliest(wanted: Resources, rooms: Iterable[NodeCapacity], now: float) -> Slot | None:
    """Return when and where `wanted` first fits if every job ends at its walltime and nothing else starts.

    None when it never fits. Ties go to the nodes with the fewest GPUs free at that moment, then to the first by name.
    """
    count = wanted.nodes
    best: list[tuple[float, int, int]] = []
    found: dict[int, NodeCapacity] = {}
    for room in rooms:
        if not room.could_hold(wanted):
            continue
        moment = first_fit(wanted, room, now, best[-1][0] if len(best) == count else inf)
        if moment is not None:
            found[room.index] = room
            insort(best, (*moment, room.index))
            del best[count:]
    return (best[-1][0], [found[index] for _, _, index in best]) if len(best) == count else None


def first_fit(wanted: Resources, room: NodeCapacity, now: float, no_later: float = inf) -> tuple[float, int] | None:
    """Return the first moment up to `no_later` at which `wanted` fits in `room`, and the GPUs free then."""
    cpus, memory, gpus = room.cpus, room.memory, room.free_of(wanted)
    if cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus:
        return now, gpus
    for release in sorted(room.releases.values()):
        if release.at > no_later:
            return None
        cpus += release.cpus
        memory += release.memory
        gpus += room.suited_of(release.gpus, wanted)
        if cpus >= wanted.cpus and memory >= wanted.memory and gpus >= wanted.gpus:
            return max(release.at, now), gpus
    return None


def is_plain(allowed_nodes: AllowedNodes, promises: Promises) -> bool:
    """True when what is free in the rooms of allowed nodes only grows with time: nobody is promised anything there, and no window
    comes.

    Where more than one job gets a promise, this is not asked: theirs follow from one rule, in any order.
    """
    if promises.most > 1 or allowed_nodes.windows:
        return False
    return not promises.indexes or (allowed_nodes.indexes is not None and allowed_nodes.indexes.isdisjoint(promises.indexes))


def slot(
    wanted: Resources, times: Times, allowed_nodes: AllowedNodes, promises: Promises, now: float, after: float
) -> Slot | None:
    """Return when and where `wanted` first fits from `after` on if every job ends as it should and every promise is kept."""
    if is_plain(allowed_nodes, promises):
        return earliest(wanted, allowed_nodes.rooms, after)
    firsts = {
        room.index: fit[0]
        for room in allowed_nodes.rooms
        if room.could_hold(wanted) and (fit := first_fit(wanted, room, now)) is not None
    }
    return _earliest_beside(wanted, times, allowed_nodes, firsts, promises, now, after)


def _earliest_beside(
    wanted: Resources,
    times: Times,
    allowed_nodes: AllowedNodes,
    firsts: Mapping[int, float],
    promises: Promises,
    now: float,
    after: float,
) -> Slot | None:
    """Return when and where `wanted` first fits for these times: for the first beside what is promised, for the second outside of
    windows.

    `firsts` says when it would fit in each room that could hold it, by index, were it not for both. Ties go to the first by
    name and to nothing else, so that a promise stays where it is while others start beside it.
    """
    count, windows = wanted.nodes, allowed_nodes.windows
    rooms = {room.index: room for room in allowed_nodes.rooms if room.index in firsts}
    opens = {index: max(firsts[index], after) for index in rooms}
    if windows:
        opens = {index: allowed_nodes.opens(index, at, times[1]) for index, at in opens.items()}
    if len(opens) < count:
        return None
    touched = {index for index in opens if index in promises.indexes or index in windows}
    plain = nsmallest(count, (at for index, at in opens.items() if index not in touched))
    openings = {index: promises.openings(rooms[index], wanted, times[0], now) for index in touched if index in promises.indexes}
    moments = {*plain, *(opens[index] for index in touched)}
    moments.update(begin for found in openings.values() for begin, _ in found)
    moments.update(window.end for index in touched if index in windows for window in windows[index])
    # Before the first none of the rooms is ready, and at the last those are that nothing comes between.
    first, last = nsmallest(count, opens.values())[-1], plain[-1] if len(plain) == count else inf
    for at in sorted(moment for moment in moments if first <= moment <= last):
        fitting = (
            index
            for index, moment in opens.items()
            if moment <= at
            and (index not in windows or allowed_nodes.is_open(index, at, times[1]))
            and (index not in openings or any(begin <= at <= end for begin, end in openings[index]))
        )
        found = list(islice(fitting, count))
        if len(found) == count:
            return at, [rooms[index] for index in found]
    return None


def rooms_for(
    wanted: Resources, now: float, times: Times, fit: Fit, allowed_nodes: AllowedNodes, promises: Promises
) -> list[NodeCapacity]:
    """Return where `wanted` can start now: best fit on the free nodes, then on promised ones where it harms nobody.

    Fewer rooms than it has nodes when it cannot. What is promised goes by the first of its `times`, windows by the second.
    """
    ends_by, shut = now + times[0], allowed_nodes.shut(now, now + times[1])
    rooms = fit.find(wanted, allowed_nodes, promises.indexes | shut if shut else promises.indexes)
    if len(rooms) == wanted.nodes:
        return rooms
    for room in promises.rooms:
        if allowed_nodes.has(room) and room.index not in shut and promises.admits(room, wanted, ends_by):
            rooms.append(room)
            if len(rooms) == wanted.nodes:
                break
    return rooms


def start_in(rooms: Sequence[NodeCapacity], job: Waiting, ends_by: float, fit: Fit, promises: Promises) -> tuple[NodePart, ...]:
    """Give `job` what it asks for in these rooms, and return what it got in each."""
    shares = []
    for room in rooms:
        if room.index in promises.indexes:
            promises.note(room, job.resources, ends_by)
        shares.append(NodePart(node=room.name, devices=fit.take(room, job.id, job.resources, ends_by)))
    return tuple(shares)
