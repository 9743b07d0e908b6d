"""Who waits under one limit, and who of them is set aside until it has room."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush

from carrel.core.policy.limits import Limit
from carrel.core.policy.line import Group, Parked
from carrel.core.policy.needs import Key, numbers

#: Key of a group, the group, and the limits inside this one.
_Place = tuple[float, int, Group, tuple[Limit, ...]]

#: The place in line of a job that a limit keeps out, and its GPUs.
KeptOut = tuple[Key, int]


class LimitQueue:
    """The groups that wait under one limit, in the order of the queue."""

    __slots__ = ("_bar", "_known", "_lines", "_parked", "_places", "groups", "limit", "number")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.number = next(numbers)
        #: How many there are.
        self.groups = 0
        #: By GPUs, in order: those for whom it matters who is ahead.
        self._lines: dict[int, list[_Place]] = {}
        self._places: dict[Group, _Place] = {}
        #: Those that are set aside, by GPUs.
        self._parked: dict[int, list[Parked]] = {}
        self._bar: KeptOut | None = None
        self._known = False

    def put(self, group: Group) -> None:
        """The first job of `group` is another one."""
        self.changed()
        gpus = group.resources.total_gpus
        if not gpus or not self.limit.limits_gpus:
            return
        line = self._lines.setdefault(gpus, [])
        self._take_out(group, line)
        if group.key is not None and group.limits is not None:
            place = self._places[group] = (*group.key, group, group.limits.inside(self.limit))
            insort(line, place)

    def drop(self, group: Group) -> None:
        """Nobody is in `group` any more."""
        self.groups -= 1
        self._take_out(group, self._lines.get(group.resources.total_gpus, []))

    def _take_out(self, group: Group, line: list[_Place]) -> None:
        place = self._places.pop(group, None)
        if place is not None:
            del line[bisect_left(line, place)]

    def sort(self) -> None:
        """All groups may have another place than before."""
        self.changed()
        for gpus, line in self._lines.items():
            self._lines[gpus] = sorted((*group.key, group, inner) for _, _, group, inner in line if group.key is not None)
            self._places.update((place[2], place) for place in self._lines[gpus])
        for gpus, parked in self._parked.items():
            groups = [one[2] for one in parked if one[2].parked is one]
            self._parked[gpus] = []
            for group in groups:
                self._park(group)
        for parked in self._parked.values():
            heapify(parked)

    def changed(self) -> None:
        """The limit, or one inside it, has more or less room than before."""
        self._known = False

    def first_kept_out(self) -> KeptOut | None:
        """Return the first job that asks for more GPUs than are left here, and that nothing else keeps out; or None."""
        if self._known:
            return self._bar
        limit, self._bar, self._known = self.limit, None, True
        for gpus, line in self._lines.items():
            if limit.max_gpus - limit.gpus < gpus:
                for late, job_id, _, inner in line:
                    if self._bar is not None and self._bar[0] <= (late, job_id):
                        break
                    if limit.counts(inner, gpus):
                        self._bar = (late, job_id), gpus
                        break
        return self._bar

    def park(self, group: Group) -> None:
        """The limit refuses the first job of `group`: set it aside."""
        group.leave_line()
        heappush(self._parked.setdefault(group.resources.total_gpus, []), self._mark(group))

    def _park(self, group: Group) -> None:
        self._parked[group.resources.total_gpus].append(self._mark(group))

    def _mark(self, group: Group) -> Parked:
        assert group.key is not None
        group.parked = (*group.key, group)
        return group.parked

    @property
    def keeps_out(self) -> bool:
        """True when a group is set aside."""
        return any(one[2].parked is one for parked in self._parked.values() for one in parked)

    def first_freed(self) -> Parked | None:
        """Return what stands for the first in line of those that were set aside and are refused no more, or None.

        It is let in by `Group.enter`.
        """
        if not self._parked or self.limit.jobs >= self.limit.max_jobs:
            return None
        left, bar = self.limit.max_gpus - self.limit.gpus, self.first_kept_out()
        first: Parked | None = None
        for gpus, parked in self._parked.items():
            if gpus and gpus > left:
                continue
            while parked and parked[0][2].parked is not parked[0]:
                heappop(parked)
            if parked and (gpus == 0 or bar is None or parked[0][:2] < bar[0]) and (first is None or parked[0] < first):
                first = parked[0]
        return first


def gpus_ahead(first: KeptOut | None, key: Key) -> int:
    """Return the GPUs of the first job that a limit keeps out, where it stands before `key`; else 0."""
    return first[1] if first is not None and first[0] < key else 0
