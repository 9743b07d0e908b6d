"""One placement of a `Placer`: what starts now, and who is promised what.

Until a partition has all its promises its jobs are gone through in order. From then on only those can start that fit in what is
free, and these are found by what they need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from carrel.core.domain.placement import Start
from carrel.core.policy.backfill import Slot, rooms_for
from carrel.core.policy.fit import Fit
from carrel.core.policy.headroom import headroom
from carrel.core.policy.limit_queue import KeptOut, LimitQueue, gpus_ahead
from carrel.core.policy.limit_queues import LimitQueues
from carrel.core.policy.limits import Limit, LimitKey, Limits
from carrel.core.policy.line import Bulk, Group, Lines, Parked, PartitionLine
from carrel.core.policy.needs import NOBODY, Headroom, Key, Need, Needs, Node, fits
from carrel.core.policy.node_capacity import NodeCapacity
from carrel.core.policy.promises import Promise, Promises

#: What a cycle goes through: one line after the other, by who is first there.
Source = PartitionLine | Bulk | Node[Bulk] | LimitQueue


class Line(Protocol):
    """What a cycle needs of the placer."""

    #: Everything that waits.
    lines: Lines
    #: What is left on each node.
    fit: Fit
    #: Whom limits keep out, and which may let somebody in again.
    limits: LimitQueues

    def first_freed(self, queue: LimitQueue) -> Parked | None:
        """Return the first in line whom a limit lets in again, but those who have been passed over."""
        ...

    def strand(self, group: Group) -> None:
        """The group's jobs fit on none of the nodes that take jobs."""
        ...

    def slot(self, group: Group, promises: Promises, now: float) -> Slot | None:
        """Return when and where the group's jobs first fit beside `promises`."""
        ...

    def start(self, group: Group, rooms: Sequence[NodeCapacity], now: float, promises: Promises) -> Start:
        """The group's first job starts in these rooms."""
        ...


class Cycle:
    """One placement."""

    def __init__(self, placer: Line, now: float, promises: Promises, *, explains: bool = False) -> None:
        """`explains`: somebody wants to know why the others wait."""
        self.starts: list[Start] = []
        self.promises = promises
        #: The jobs that a limit refused when it was their turn: the code, and the job that the limit kept out first then.
        self.refused: dict[int, tuple[str, KeptOut | None]] = {}
        #: As `Outcome.kept_out` has it.
        self.kept_out: defaultdict[LimitKey, list[tuple[Key, KeptOut | None]]] = defaultdict(list)
        self._placer = placer
        self._now = now
        self._explains = explains
        #: Lines of partitions that have promises to give, and parts of the trees of the others, by who is first there.
        self._heap: list[tuple[float, int, int, Source]] = []
        #: The limits in which promises keep room.
        self._claims: list[Limits] = []
        #: How often something was decided by which there may be less room than before.
        self._turn = 0
        #: What was free, in which turn, and what was needed least then.
        self._free: dict[Needs[Bulk], tuple[int, Need, Sequence[Headroom]]] = {}
        #: Groups that nothing can be done for in this cycle alone.
        self._aside: list[Group] = []

    def run(self) -> None:
        """Go through all that waits, always on with whoever is first in line."""
        for line in self._placer.lines.by_partition.values():
            self._push(line)
        self._loosen()
        while self._heap:
            late, job_id, number, source = self._heap[0]
            if isinstance(source, Node):
                heappop(self._heap)
                self._look_into(source)
            elif isinstance(source, LimitQueue):
                heappop(self._heap)
                self._let_in(source, (late, job_id))
            elif (entry := source.first()) is None:
                heappop(self._heap)
            elif (entry[0], entry[1]) != (late, job_id):
                heapreplace(self._heap, (entry[0], entry[1], number, source))
            elif not self._go_on(entry[3], source):
                heappop(self._heap)
            if self._placer.limits.loosened:
                self._loosen()
        for group in self._aside:
            if group.passed or group.entry is None:
                group.passed = 0
                group.enter()
        for limits in self._claims:
            limits.unclaim()
        if self._explains:
            self._note_kept_out(NOBODY, None)

    def _push(self, source: PartitionLine | Bulk) -> None:
        entry = source.first()
        if entry is not None:
            heappush(self._heap, (entry[0], entry[1], source.number, source))

    def _go_on(self, group: Group, source: PartitionLine | Bulk) -> bool:
        """Decide about the group's first job. False when this is no way to go on with the others."""
        if isinstance(source, Bulk):
            return self._beside(group, source)
        if not self._promising(group.bulk):
            return False
        self._in_order(group)
        return True

    def _loosen(self) -> None:
        """Limits have more room than before."""
        while self._placer.limits.loosened:
            queue, _ = self._placer.limits.loosened.popitem()
            one = self._placer.first_freed(queue)
            if one is not None:
                heappush(self._heap, (one[0], one[1], queue.number, queue))

    def _let_in(self, queue: LimitQueue, key: Key) -> None:
        """It is the turn of whom a limit lets in again, if it still does. One by one: often the first takes all that there is."""
        one = self._placer.first_freed(queue)
        if one is None:
            return
        if one[:2] == key:
            group = one[2]
            group.enter()
            source = group.bulk.line if self._promising(group.bulk) else group.bulk
            if self._go_on(group, source) and group.entry is not None:
                self._push(source)
        self._placer.limits.loosened[queue] = None

    def _promising(self, bulk: Bulk) -> bool:
        return self.promises.wants(bulk.line.partition)

    def _in_order(self, group: Group) -> None:
        """Start the group's first job, promise it something, or put the group aside."""
        if self._is_refused(group):
            return
        if group.bulk.allowed_nodes.cluster:
            self._start(group, ())
            return
        rooms = self._rooms_for(group)
        if len(rooms) == group.resources.nodes:
            self._start(group, rooms)
        elif not self._promise(group):
            self._placer.strand(group)
        elif self._promising(group.bulk):
            # The next one of the group may be promised something too, when its turn comes.
            group.passed += 1
            self._aside.append(group)
            group.enter()
        else:
            self._backfill(group.bulk.line)

    def _backfill(self, line: PartitionLine) -> None:
        """Go on with those alone for whom there may be room."""
        for needs in line.needs.values():
            heappush(self._heap, (*needs.root.foremost, needs.root.number, needs.root))

    def _look_into(self, node: Node[Bulk]) -> None:
        """Go on with what is in a part of a tree, where there may be room for somebody of it."""
        free, foremost = self._headroom(node.tree), NOBODY
        for one in node.inside:
            key = one.foremost
            if key < foremost:
                foremost = key
            if fits(one.need, free, self._now):
                heappush(self._heap, (*key, one.number, one))
        node.foremost = foremost

    def _headroom(self, needs: Needs[Bulk]) -> Sequence[Headroom]:
        known = self._free.get(needs)
        if known is None or known[0] != self._turn or known[1] != needs.root.need:
            free = headroom(needs, self._now, self._placer.fit, self.promises)
            known = self._free[needs] = (self._turn, needs.root.need, free)
        return known[2]

    def _beside(self, group: Group, bulk: Bulk) -> bool:
        """Start the group's first job beside what is promised, or put the group aside. False when the bulk is done with."""
        if not fits(bulk.need, self._headroom(bulk.needs), self._now):
            return False
        if self._is_refused(group):
            return True
        rooms = self._rooms_for(group)
        if len(rooms) < group.resources.nodes:
            return False
        self._start(group, rooms)
        return True

    def _rooms_for(self, group: Group) -> Sequence[NodeCapacity]:
        times = (group.seconds, group.longest)
        return rooms_for(group.resources, self._now, times, self._placer.fit, group.bulk.allowed_nodes, self.promises)

    def _start(self, group: Group, rooms: Sequence[NodeCapacity]) -> None:
        self._turn += 1
        if self._explains and group.entry is not None:
            self._note_kept_out(group.entry[:2], group.limits)
        self.starts.append(self._placer.start(group, rooms, self._now, self.promises))

    def _note_kept_out(self, until: Key, limits: Limits | None) -> None:
        for key, first in self._placer.limits.kept_out(limits).items():
            self.kept_out[key].append((until, first))

    def _is_refused(self, group: Group) -> bool:
        """True when a limit refuses the group's first job; then the group is set aside."""
        limit = self._refusing(group)
        if limit is None:
            return False
        if limit.claims:
            group.entry = None
            self._aside.append(group)
        else:
            self._placer.limits.at(limit).park(group)
        return True

    def _refusing(self, group: Group) -> Limit | None:
        if group.limits is None:
            return None
        self.refused.pop(group.head.id, None)
        assert group.entry is not None  # it is in line
        key, at = group.entry[:2], self._placer.limits.at
        refusal = group.limits.refuses(group.resources.total_gpus, lambda limit: gpus_ahead(at(limit).first_kept_out(), key))
        if refusal is None:
            return None
        limit, code = refusal
        if self.promises.of(group.head) is None:  # else it was its turn before, and its own promise refuses it now
            self.refused[group.head.id] = code, at(limit).first_kept_out()
        return limit

    def _promise(self, group: Group) -> bool:
        """Promise the group's first job when and where it first fits. False when it never does."""
        slot = self._placer.slot(group, self.promises, self._now)
        if slot is None:
            return False
        self._turn += 1
        self.promises.make(Promise(group.head, *slot, group.seconds))
        if group.limits is not None:
            group.limits.claim(group.head)
            self._claims.append(group.limits)
        return True
