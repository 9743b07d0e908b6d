"""The queue in groups of jobs that are alike, so that a placement looks at one of each and not at all of them."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from carrel.domain.placement import Waiting
from carrel.domain.resources import Resources
from carrel.policy.limits import Limits

#: Key of the first job of a group (seconds, id), a number that tells entries apart, and the group.
Entry = tuple[float, int, int, "Group"]

#: What is asked for, but for the time.
Kind = tuple[int, int, str | None, int, int]

_numbers = count()


def kind_of(wanted: Resources) -> Kind:
    """Return what `wanted` asks for, but for the time."""
    return (wanted.nodes, wanted.gpus, wanted.gpu_type, wanted.cpus, wanted.memory)


class Bulk:
    """Groups that ask for the same on a node, if not for as long: where one finds no room at all, none of them does."""

    __slots__ = ("entries", "full", "number", "times", "wanted")

    def __init__(self, wanted: Resources) -> None:
        self.wanted = wanted
        self.number = next(_numbers)
        self.entries: list[Entry] = []
        #: How many groups ask for so many seconds.
        self.times: dict[int, int] = {}
        #: No room has so much free. Stays true until somebody gives something back.
        self.full = False

    def join(self, seconds: int) -> None:
        """There is one group more."""
        self.times[seconds] = self.times.get(seconds, 0) + 1

    def part(self, seconds: int) -> None:
        """There is one group less."""
        self.times[seconds] -= 1
        if not self.times[seconds]:
            del self.times[seconds]

    def first(self) -> Entry | None:
        """Return the entry of the group that is first in line, or None."""
        entries = self.entries
        while entries and entries[0][3].entry is not entries[0]:
            heappop(entries)
        return entries[0] if entries else None


class Group:
    """Waiting jobs that differ in nothing but their age: of one owner, account and QoS, with the same resources."""

    __slots__ = ("_jobs", "bulk", "entry", "gone", "key", "limits", "offset", "resources", "who")

    def __init__(self, bulk: Bulk, resources: Resources, limits: Limits | None, who: tuple[str, str, str], offset: float) -> None:
        self.bulk = bulk
        self.resources = resources
        #: None when there is no such QoS.
        self.limits = limits
        #: Owner, account and QoS.
        self.who = who
        self.offset = offset
        #: (seconds and id) of the first job; what is smallest is first in line. None when there is no job.
        self.key: tuple[float, int] | None = None
        #: The entry that stands for the group in its bulk; None while it is put aside.
        self.entry: Entry | None = None
        #: Jobs that are not in the group any more, while they are still in the heap.
        self.gone: set[int] = set()
        self._jobs: list[tuple[float, int, int, Waiting]] = []

    @property
    def head(self) -> Waiting:
        """The first job. There is one."""
        return self._jobs[0][3]

    def add(self, late: float, job: Waiting) -> bool:
        """Put a job in line; return whether it is the first now. A job that was in here must have been removed by `remove`."""
        if job.id in self.gone:  # its old entry would come back to life
            self._jobs = [item for item in self._jobs if item[1] not in self.gone]
            self._jobs.sort()
            self.gone.clear()
        heappush(self._jobs, (late, job.id, next(_numbers), job))
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
        """Stand in line in one's bulk, with the first job's key."""
        if self.key is None or self.limits is None:
            self.entry = None
            return
        self.entry = (*self.key, next(_numbers), self)
        entries = self.bulk.entries
        if len(entries) > 4 * sum(self.bulk.times.values()) + 16:  # most are of the past
            entries[:] = [entry for entry in entries if entry[3].entry is entry]
            heapify(entries)
        heappush(entries, self.entry)

    def _settle(self) -> bool:
        jobs = self._jobs
        while jobs and jobs[0][1] in self.gone:
            self.gone.discard(heappop(jobs)[1])
        key = (jobs[0][0] + self.offset, jobs[0][1]) if jobs else None
        changed = key != self.key
        self.key = key
        return changed
