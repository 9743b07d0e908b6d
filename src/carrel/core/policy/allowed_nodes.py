"""Where somebody's jobs may run, and until when: the nodes of a partition, less the windows that are kept for others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from carrel.core.domain.partition import Partition
from carrel.core.domain.placement import Kind, Waiting
from carrel.core.domain.reservation import Reservation
from carrel.core.policy.node_capacity import NodeCapacity

#: The partition, the node that was made for the job (None: none is), and the places of those reservations that keep it out.
Key = tuple[str, str | None, tuple[int, ...]]
#: The first two of these: what tells rooms from those of others.
Place = tuple[str, str | None]


_NONE: frozenset[int] = frozenset()


class AllowedNodes:
    """The rooms that some jobs may have, and when. Jobs with the same allowed nodes differ in what they ask for, never in where
    it may be."""

    __slots__ = ("_good", "_last_ends", "_shut", "cluster", "indexes", "key", "partition", "place", "rooms", "windows")

    def __init__(self, key: Key) -> None:
        self.key = key
        #: Name of the partition, or "" for the whole lab.
        self.partition = key[0]
        self.place: Place = key[:2]
        #: What stands for the node where Slurm chooses it: then there are no rooms, and each job that may start does. Else "".
        self.cluster = ""
        self.rooms: Sequence[NodeCapacity] = ()
        #: Of the rooms; None when it has all.
        self.indexes: frozenset[int] | None = None
        #: By index of the room, in the order of their beginnings. Rooms without any are left out.
        self.windows: Mapping[int, Sequence[Reservation]] = {}
        #: For moments from the first to before the second this holds: the last ends, and the rooms that are shut beyond them.
        self._good = (inf, -inf)
        self._last_ends: list[float] = []
        self._shut: list[frozenset[int]] = []

    def set_rooms(self, rooms: Sequence[NodeCapacity], partition: Partition | None, closed: Sequence[Reservation]) -> None:
        """These are all rooms from now on."""
        self.cluster = "" if partition is None else partition.cluster
        node, has_all = self.key[1], partition is None and self.key[1] is None
        inside = (room for room in rooms if (partition is None or partition.has(room.name)) and node in (None, room.name))
        self.rooms = rooms if has_all else list(inside)
        self.indexes = None if has_all else frozenset(room.index for room in self.rooms)
        windows = {}
        in_order = sorted(closed, key=lambda window: (window.begin, window.end, window.name))
        for room in self.rooms if in_order else ():
            here = [window for window in in_order if window.covers(room.name)]
            if here:
                windows[room.index] = here
        self.windows = windows
        self._good = (inf, -inf)

    def has(self, room: NodeCapacity) -> bool:
        """True when it is one of the rooms."""
        return self.indexes is None or room.index in self.indexes

    def shut(self, now: float, ends_by: float) -> frozenset[int]:
        """Return the indexes of the rooms in which what runs from `now` until `ends_by` would reach into a window."""
        if not self.windows:
            return _NONE
        if not self._good[0] <= now < self._good[1]:
            self._look(now)
        return self._shut[bisect_left(self._last_ends, ends_by)]

    def _look(self, now: float) -> None:
        by_end: dict[float, list[int]] = {}
        begin, end = -inf, inf
        for index, windows in self.windows.items():
            for window in windows:
                if window.end <= now:
                    begin = max(begin, window.end)
                else:
                    end = min(end, window.end)
            coming = next((window.begin for window in windows if window.end > now), None)
            if coming is not None:
                by_end.setdefault(coming, []).append(index)
        self._good = (begin, end)
        self._last_ends = sorted(by_end)
        self._shut = [_NONE]
        for moment in self._last_ends:
            self._shut.append(self._shut[-1].union(by_end[moment]))

    def opens(self, index: int, at: float, seconds: float) -> float:
        """Return the first moment from `at` on when a room is free of windows for so many seconds."""
        for window in self.windows.get(index, ()):
            if window.begin < at + seconds and window.end > at:
                at = window.end
        return at

    def is_open(self, index: int, at: float, seconds: float) -> bool:
        """True when no window of a room is touched by what runs in it for so many seconds from `at` on."""
        return all(window.begin >= at + seconds or window.end <= at for window in self.windows.get(index, ()))


#: That of a partition that does not exist.
NOWHERE = AllowedNodes(("", None, (-1,)))


class AllowedNodesByOwner:
    """The allowed nodes of everybody, made when first asked for."""

    def __init__(
        self, rooms: Sequence[NodeCapacity], partitions: Mapping[str, Partition], reservations: Iterable[Reservation]
    ) -> None:
        self._rooms = rooms
        self._partitions = partitions
        self._reservations = tuple(reservations)
        self._allowed_by_owner: dict[Key, AllowedNodes] = {}
        self._known: dict[tuple[str, str, str, str | None, bool], AllowedNodes | None] = {}

    def of(self, job: Kind | Waiting) -> AllowedNodes | None:
        """Return where a job may run; None when there is no such partition."""
        owner, account, borrows = (job.owner, job.account, job.resources.borrows) if self._reservations else ("", "", False)
        who = (owner, account, job.partition, job.node, borrows)
        try:
            return self._known[who]
        except KeyError:
            allowed_nodes = self._known[who] = self._make(*who)
            return allowed_nodes

    def set_rooms(self, rooms: Sequence[NodeCapacity]) -> None:
        """These are the rooms from now on. What somebody has of them keeps being right."""
        self._rooms = rooms
        for allowed_nodes in self._allowed_by_owner.values():
            self._fill(allowed_nodes)

    def next_change(self, now: float) -> float | None:
        """Return the first moment after `now` at which a window begins or ends, or None."""
        moments = (moment for window in self._reservations for moment in (window.begin, window.end) if moment > now)
        return min(moments, default=None)

    def _make(self, owner: str, account: str, partition: str, node: str | None, borrows: bool) -> AllowedNodes | None:
        if partition and partition not in self._partitions:
            return None
        windows = enumerate(self._reservations)
        shut_out = (place for place, window in windows if not window.admits(owner, account, node=node, borrows=borrows))
        key = (partition, node, tuple(shut_out))
        allowed_nodes = self._allowed_by_owner.get(key)
        if allowed_nodes is None:
            allowed_nodes = self._allowed_by_owner[key] = AllowedNodes(key)
            self._fill(allowed_nodes)
        return allowed_nodes

    def _fill(self, allowed_nodes: AllowedNodes) -> None:
        partition, _, closed = allowed_nodes.key
        windows = [self._reservations[place] for place in closed]
        allowed_nodes.set_rooms(self._rooms, self._partitions[partition] if partition else None, windows)
