"""Jobs in line, and one walk along the line that starts what fits."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from baselines.packing import Nodes, Placement

#: A job's turn: what decides first, what decides among equals, place of the job in the trace. Smaller goes first.
Turn = tuple[float, int, int]


class Waiting:
    """Jobs in line, kept apart by how many GPUs they need.

    Among jobs of one size the first in line starts first, always. So a walk along the line has to look at one job of each size
    only, and it is over for a size, and for all larger ones, when one of that size does not fit.
    """

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: dict[int, list[Turn]] = {}

    def put(self, turn: Turn, gpus: int) -> None:
        """Let a job wait for its turn."""
        heappush(self._lines.setdefault(gpus, []), turn)

    def heads(self) -> list[tuple[Turn, int]]:
        """Return the first job of each size and its GPUs, as a heap."""
        heads = [(line[0], gpus) for gpus, line in self._lines.items()]
        heapify(heads)
        return heads

    def leave(self, gpus: int) -> Turn | None:
        """Take the first job of this size out of the line; return the one behind it."""
        line = self._lines[gpus]
        heappop(line)
        if line:
            return line[0]
        del self._lines[gpus]
        return None


class Walk(NamedTuple):
    """What came out of one walk."""

    #: Jobs that have GPUs now, in the order of the walk, and what they have.
    on: Sequence[Turn]
    placements: Sequence[Placement]
    #: Jobs that had been running and found no room, in the order of the walk.
    off: Sequence[Turn]


def walk(nodes: Nodes, waiting: Waiting, gpus: Sequence[int], *, running: Sequence[Turn] = (), blocking: bool = False) -> Walk:
    """Give GPUs to jobs in the order of their turns, as long as there are any; those that wait and get some leave the line.

    `running` are jobs, in order, which are packed again together with those that wait; `gpus` tells for each job of the trace how
    many it needs. Jobs that do not fit are passed over, or with `blocking` end the walk.
    """
    on: list[Turn] = []
    placements: list[Placement] = []
    off: list[Turn] = []
    heads = waiting.heads()
    too_many = nodes.free + 1
    position, count = 0, len(running)
    while nodes.free and (heads or position < count):
        if heads and (position == count or heads[0][0] < running[position]):
            turn, size = heads[0]
            placement = nodes.take(size) if size < too_many else None
            following = None
            if placement is not None:
                on.append(turn)
                placements.append(placement)
                following = waiting.leave(size)
            if following is not None:
                heapreplace(heads, (following, size))
            else:
                heappop(heads)
        else:
            turn = running[position]
            size = gpus[turn[2]]
            position += 1
            placement = nodes.take(size) if size < too_many else None
            if placement is not None:
                on.append(turn)
                placements.append(placement)
            else:
                off.append(turn)
        if placement is None:
            too_many = min(too_many, size)
            if blocking:
                break
    off.extend(running[position:])
    return Walk(on, placements, off)
