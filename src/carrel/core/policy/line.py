"""The queue in groups of jobs that are alike, so that a placement looks at one of each and not at all of them."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from carrel.core.domain.placement import ArrayLimit, Waiting
from carrel.core.domain.resources import Resources
from carrel.core.policy.allowed_nodes import AllowedNodes
from carrel.core.policy.limits import Limits
from carrel.core.policy.needs import NOBODY, Key, Need, Needs, Node, moved, numbers

#: Key of the first job of a group, a number that tells entries apart, and the group.
Entry = tuple[float, int, int, "Group"]
#: Key of the first job of a group that is set aside, and the group.
Parked = tuple[float, int, "Group"]

#: What is asked for and where, but for the time.
Kind = tuple[int, int, str | None, int, int, int, AllowedNodes]
#: How long a job is expected to run, and after how long it is gone at the latest: seconds.
Times = tuple[float, int]

#: The allowed nodes, the type of the GPUs, how much memory they must have, the nodes, and whether GPUs are asked for at all.
NeedKey = tuple[AllowedNodes, str | None, float, int, bool]

#: What a job's submission and priority say, its id, a number that tells entries apart, and the job.
_Item = tuple[float, int, int, Waiting]


class Alike(NamedTuple):
    """What the jobs of one group have in common."""

    owner: str
    account: str
    qos: str
    partition: str
    resources: Resources
    seconds: float
    #: Seconds after which such a job is gone at the latest.
    longest: int
    array: ArrayLimit | None = None


def kind_of(wanted: Resources, allowed_nodes: AllowedNodes) -> Kind:
    """Return what `wanted` asks for, and where that may be, but for the time."""
    return (wanted.nodes, wanted.gpus, wanted.gpu_type, wanted.gpu_memory, wanted.cpus, wanted.memory, allowed_nodes)


class Entries:
    """Groups in line, with the first at hand."""

    __slots__ = ("_entries", "groups", "number")

    def __init__(self) -> None:
        self.number = next(numbers)
        #: How many groups there are, in line or set aside.
        self.groups = 0
        self._entries: list[Entry] = []

    def push(self, entry: Entry) -> None:
        """A group is in line, or has another place there than before."""
        entries = self._entries
        if len(entries) > 4 * self.groups + 16:  # most are of the past
            entries[:] = [entry for entry in entries if entry[3].entry is entry]
            heapify(entries)
        heappush(entries, entry)

    def first(self) -> Entry | None:
        """Return the entry of the group that is first in line, or None."""
        entries = self._entries
        while entries and entries[0][3].entry is not entries[0]:
            heappop(entries)
        return entries[0] if entries else None

    def clear(self) -> None:
        """Nobody is in line."""
        self._entries.clear()


class PartitionLine(Entries):
    """All that waits in one partition."""

    __slots__ = ("needs", "partition")

    def __init__(self, partition: str) -> None:
        super().__init__()
        self.partition = partition
        #: By what its jobs have in common.
        self.needs: dict[NeedKey, Needs[Bulk]] = {}

    def needs_of(self, wanted: Resources, allowed_nodes: AllowedNodes, level: float) -> Needs[Bulk]:
        """Return those that ask for the same GPUs (if they ask for any), as many nodes, on the same allowed nodes."""
        key = (allowed_nodes, wanted.gpu_type, level, wanted.nodes, wanted.gpus > 0)
        needs = self.needs.get(key)
        if needs is None:
            needs = self.needs[key] = Needs(wanted, allowed_nodes)
        return needs


class Bulk(Entries):
    """Groups that ask for the same on the same nodes, for as long: where one finds no room, none of them does."""

    __slots__ = ("allowed_nodes", "leaf", "line", "need", "needs", "times", "wanted")

    def __init__(
        self, wanted: Resources, times: Times, allowed_nodes: AllowedNodes, line: PartitionLine, needs: Needs[Bulk]
    ) -> None:
        super().__init__()
        self.wanted = wanted
        self.times = times
        self.allowed_nodes = allowed_nodes
        self.line = line
        self.need: Need = (wanted.gpus, wanted.cpus, wanted.memory, *times)
        #: Where it is while somebody of it is in line.
        self.needs = needs
        self.leaf: Node[Bulk] | None = None

    @property
    def foremost(self) -> Key:
        """The place in line of its first group, or one before that."""
        return self._entries[0][:2] if self._entries else NOBODY

    def push(self, entry: Entry) -> None:
        """A group is in line, or has another place there than before."""
        super().push(entry)
        self.line.push(entry)
        if self.leaf is None:
            self.needs.add(self)
        else:
            moved(self)

    def first(self) -> Entry | None:
        """Return the entry of the group that is first in line, or None."""
        found = super().first()
        if found is None and self.leaf is not None:
            self.needs.remove(self)
        return found

    def move(self, needs: Needs[Bulk]) -> None:
        """Be found among these from now on."""
        self.needs = needs
        if self.leaf is not None:
            needs.add(self)


class Group:
    """Waiting jobs that differ in nothing but their age."""

    __slots__ = (
        *("_jobs", "alike", "bulk", "entry", "gone", "key", "limits", "longest", "offset", "parked", "passed"),
        *("resources", "seconds"),
    )

    def __init__(self, alike: Alike, bulk: Bulk, limits: Limits | None, offset: float) -> None:
        self.alike = alike
        self.bulk = bulk
        self.resources = alike.resources
        #: How long each is expected to run; its walltime where nothing is expected.
        self.seconds, self.longest = alike.seconds, alike.longest
        #: None when there is no such QoS, or no such partition.
        self.limits = limits
        self.offset = offset
        #: (seconds and id) of the first job; what is smallest is first in line. None when there is no job.
        self.key: Key | None = None
        #: The entry that stands for the group in its bulk; None while it is put aside.
        self.entry: Entry | None = None
        #: What stands for it among those that a limit keeps out, while it does.
        self.parked: Parked | None = None
        #: Jobs that are not in the group any more, while they are still in the heap.
        self.gone: set[int] = set()
        #: How many of the first jobs are passed over in this placement: they have a promise.
        self.passed = 0
        self._jobs: list[_Item] = []

    @property
    def head(self) -> Waiting:
        """The first job that is not passed over. There is one."""
        return self._item(self.passed)[3]

    def add(self, late: float, job: Waiting) -> bool:
        """Put a job in line; return whether it is the first now. A job that was in here must have been removed by `remove`."""
        if job.id in self.gone:  # its old entry would come back to life
            self._jobs = [item for item in self._jobs if item[1] not in self.gone]
            self._jobs.sort()
            self.gone.clear()
        heappush(self._jobs, (late, job.id, next(numbers), job))
        return self._settle()

    def remove(self, job_id: int) -> bool:
        """Take a job out of the line; return whether it was the first."""
        self.gone.add(job_id)
        return self._settle()

    def reorder(self, offset: float) -> None:
        """The group's place among others changes, not that of its jobs among each other."""
        self.offset = offset
        self._settle()

    def enter(self) -> None:
        """Stand in line in one's bulk, with the key of the first job that is not passed over."""
        key, self.parked = self.key, None
        if key is not None and self.passed:
            key = self._key(self._item(self.passed)) if self.passed < len(self._jobs) - len(self.gone) else None
        if key is None or self.limits is None:
            self.entry = None
            return
        self.entry = (*key, next(numbers), self)
        self.bulk.push(self.entry)

    def leave_line(self) -> None:
        """Be put aside until somebody lets it `enter`."""
        self.entry = None
        self.bulk.first()

    def _settle(self) -> bool:
        jobs = self._jobs
        while jobs and jobs[0][1] in self.gone:
            self.gone.discard(heappop(jobs)[1])
        key = self._key(jobs[0]) if jobs else None
        changed = key != self.key
        self.key = key
        return changed

    def _key(self, item: _Item) -> Key:
        return (item[0] + self.offset, item[1])

    def _item(self, place: int) -> _Item:
        """Return the job at a place in the group's own line, which is a heap: no child goes before its parent."""
        jobs = self._jobs
        if place == 0:
            return jobs[0]
        edge = [(jobs[0], 0)]
        while True:
            item, at = heappop(edge)
            if item[1] not in self.gone:
                if place == 0:
                    return item
                place -= 1
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(jobs):
                    heappush(edge, (jobs[child], child))


class Lines:
    """All that waits, by partition, and by what is asked for."""

    def __init__(self) -> None:
        self.by_partition: dict[str, PartitionLine] = {}
        self._bulks: dict[tuple[Kind, Times], Bulk] = {}

    def enter(self, partition: str, wanted: Resources, times: Times, allowed_nodes: AllowedNodes, level: float) -> Bulk:
        """Return the bulk of a new group; `level` is the memory that its GPUs must have, among those that there are."""
        key = (kind_of(wanted, allowed_nodes), times)
        bulk = self._bulks.get(key)
        if bulk is None:
            line = self.by_partition.get(partition)
            if line is None:
                line = self.by_partition[partition] = PartitionLine(partition)
            bulk = self._bulks[key] = Bulk(wanted, times, allowed_nodes, line, line.needs_of(wanted, allowed_nodes, level))
        bulk.groups += 1
        bulk.line.groups += 1
        return bulk

    def leave(self, bulk: Bulk) -> None:
        """A group of the bulk is there no more."""
        bulk.first()  # it is in nobody's way any more
        bulk.groups -= 1
        bulk.line.groups -= 1
        if not bulk.groups:
            del self._bulks[kind_of(bulk.wanted, bulk.allowed_nodes), bulk.times]

    def clear(self) -> None:
        """Nobody is in line; the bulks stay."""
        for known in (self.by_partition, self._bulks):
            for entries in known.values():
                entries.clear()

    def sort_needs(self, level: Callable[[int], float]) -> None:
        """There are GPUs with other amounts of memory than before."""
        for line in self.by_partition.values():
            line.needs.clear()
        for bulk in self._bulks.values():
            bulk.move(bulk.line.needs_of(bulk.wanted, bulk.allowed_nodes, level(bulk.wanted.gpu_memory)))
