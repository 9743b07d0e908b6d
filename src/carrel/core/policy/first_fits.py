"""When and where one kind of job first fits, kept up to date as nodes change: `backfill.earliest` for callers that ask often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes
from carrel.core.policy.backfill import Slot, first_fit
from carrel.core.policy.node_capacity import NodeCapacity

#: The moment, the GPUs free then, the index of the room; and how often that room had changed when this was found.
Found = tuple[float, int, int, int]


class FirstFits:
    """The first fit of `wanted` in every room."""

    __slots__ = ("_allowed_nodes", "_changed", "_found", "_known", "_rooms", "_turns", "_wanted")

    def __init__(self, wanted: Resources, allowed_nodes: AllowedNodes, rooms: Sequence[NodeCapacity]) -> None:
        """Of all `rooms`, those of the allowed nodes count."""
        self._wanted = wanted
        self._allowed_nodes = allowed_nodes
        self._rooms = rooms
        self._turns = [0] * len(rooms)
        self._found: list[Found] = []
        self._known: dict[int, float] = {}
        self._changed = {room.index for room in allowed_nodes.rooms if room.could_hold(wanted)}

    def changed(self, room: NodeCapacity) -> None:
        """Something was taken or given back in `room`."""
        if self._allowed_nodes.has(room):
            self._changed.add(room.index)

    def moments(self) -> Mapping[int, float]:
        """Return when it fits first in each room that could hold it, by index; a moment that is over is as good as now."""
        self._catch_up()
        return self._known

    def earliest(self, now: float) -> Slot | None:
        """Return what `backfill.earliest` returns."""
        self._catch_up()
        count = self._wanted.nodes
        # Those that are overdue all end now: their order is that of what is free then.
        due: list[tuple[int, int]] = []
        taken: list[Found] = []
        while self._found and (len(taken) < count or self._found[0][0] <= now):
            entry = heappop(self._found)
            if entry[3] == self._turns[entry[2]]:
                taken.append(entry)
                if entry[0] <= now:
                    due.append((entry[1], entry[2]))
        for entry in taken:
            heappush(self._found, entry)
        if len(taken) < count:
            return None
        indexes = [index for _, index in sorted(due)] + [index for at, _, index, _ in taken if at > now]
        at = now if len(due) >= count else taken[count - 1][0]
        return at, [self._rooms[index] for index in indexes[:count]]

    def _catch_up(self) -> None:
        for index in self._changed:
            self._turns[index] += 1
            room = self._rooms[index]
            fit = first_fit(self._wanted, room, -inf) if room.could_hold(self._wanted) else None
            if fit is not None:
                heappush(self._found, (*fit, index, self._turns[index]))
                self._known[index] = fit[0]
            else:
                self._known.pop(index, None)
        self._changed.clear()
        if len(self._found) > 4 * len(self._rooms) + 64:
            self._found = [entry for entry in self._found if entry[3] == self._turns[entry[2]]]
            heapify(self._found)
