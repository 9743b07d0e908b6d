"""What a job may take of the disk: counted when the disk itself says that it could be too much by now."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from carrel.core.domain.launch import Launch
from carrel.core.domain.ports import Clock
from carrel.core.spool import AttemptDirectory
from carrel.core.spool.trees import entries_below
from carrel.node.runner.prepare import is_inside
from carrel.node.runner.tree import descendants
from carrel.node.runner.walls import private_temporary

if TYPE_CHECKING:
    from carrel.node.runner.prepared import Prepared

#: Directory entries that are counted before the watch looks after other things again.
_PART = 10_000
#: Seconds between two looks at the free room, at the least and at the most.
_SHORTEST, _LONGEST = 0.25, 1.0
#: Seconds after which all is counted again although the disk has lost no room: others may have freed some meanwhile.
_AGAIN = 60.0
#: How many times as long as it counts it then waits.
_REST = 4.0
#: Bytes and files per second that a job is trusted not to pass when the time of the next look is chosen.
_GROWTH, _NEW_FILES = 4 * 1024**3, 100_000
#: More than there is of anything.
_ENDLESS = 1 << 62


class DiskUse(NamedTuple):
    """Room on a disk: taken, left, or allowed."""

    size: int = 0
    #: Files, directories and links.
    files: int = 0


def disk_guard(launch: Launch, directory: AttemptDirectory, prepared: Prepared) -> DiskGuard | None:
    """Return what watches a command of this process, None where it has no limit."""
    limits = launch.limits
    if not limits.disk and not limits.files:
        return None
    temporary = prepared.places.temporary
    places = [directory.work, directory.checkpoint, private_temporary(directory), temporary, directory.group.parent]
    kept: list[str | Path | None] = [launch.walls.home if launch.walls is not None else ""]
    if launch.task.session is not None:
        kept += [prepared.directory, prepared.places.environment]
    # Elsewhere than in the lab, as in their own home, people may do what they like.
    grown = [str(place) for place in kept if place and any(is_inside(Path(part), Path(place)) for part in launch.paths.closed)]
    return DiskGuard(
        DiskUse(limits.disk, limits.files),
        [os.path.realpath(place) for place in places if place],
        grown=[os.path.realpath(place) for place in grown],
        processes=lambda: descendants(os.getpid()),
    )


class DiskGuard:
    """Watches what a job has on the disk.

    Free room is asked for often, which costs nothing; files are counted only where so much of it has gone since the last count
    that the job could have passed its limit, and once a minute.
    """

    def __init__(
        self,
        limit: DiskUse,
        places: Sequence[str],
        *,
        grown: Sequence[str] = (),
        processes: Callable[[], Sequence[int]] = tuple,
        free: Callable[[Sequence[str]], Mapping[int, DiskUse]] | None = None,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """`limit`: 0 is none. `places`: directories of the job alone. `grown`: others; what was there at the first count is not
        the job's. `processes`: those of the job, which may have files open that have no name any more.
        """
        self._limit = DiskUse(*(most or _ENDLESS for most in limit))
        self._places = places
        self._grown = grown
        self._processes = processes
        self._free = free or free_room
        self._monotonic = monotonic
        self._count: Iterator[DiskUse | None] | None = None
        #: What was in each of `grown` at the first count.
        self._before: dict[str, DiskUse] = {}
        self._used = DiskUse()
        #: Free room at the beginning; what is gone since then counts as the job's where something cannot be looked into.
        self._free_first: Mapping[int, DiskUse] | None = None
        #: Free room when the last count began, and when that was.
        self._free_then: Mapping[int, DiskUse] = {}
        self._counted_at = -_AGAIN

    def look(self) -> tuple[DiskUse | None, float]:
        """Return what the job has if it is too much (else None), and in how many seconds to look again."""
        began = self._monotonic()
        if self._count is None:
            kinds = list(zip(self._limit, self._used, self._gone(self._free_then), (_GROWTH, _NEW_FILES), strict=True))
            due = any(gone >= max(most - had, most // 100) for most, had, gone, _ in kinds)
            if not due and began - self._counted_at < _AGAIN:
                pause = min((most - had - gone) / growth for most, had, gone, growth in kinds)
                return None, min(_LONGEST, max(_SHORTEST, pause))
            self._free_then, self._counted_at = self._free([*self._places, *self._grown]), began
            self._free_first = self._free_first or self._free_then
            self._count = self._counting()
        found = next(self._count)
        if found is None:
            return None, _REST * (self._monotonic() - began)
        self._count, self._used = None, found
        return (found if found.size > self._limit.size or found.files > self._limit.files else None), _SHORTEST

    def count_first(self) -> None:
        """Count what is there before anything of the job runs."""
        while self._free_first is None or self._count is not None:
            self.look()

    def _gone(self, before: Mapping[int, DiskUse]) -> DiskUse:
        now = self._free([*self._places, *self._grown])
        lost = [(had, now.get(disk, had)) for disk, had in before.items()]
        return DiskUse(*(sum(max(0, had[kind] - has[kind]) for had, has in lost) for kind in (0, 1)))

    def _counting(self) -> Iterator[DiskUse | None]:
        """None for each part that is done, then the sum."""
        seen: set[tuple[int, int]] = set()
        closed: list[str] = []
        total = files = 0
        for place in (*self._places, *self._grown):
            here, entries = 0, 0
            sizes = _sizes(place, seen, closed)
            while part := list(islice(sizes, _PART)):
                here, entries = here + sum(part), entries + len(part)
                yield None
            if place in self._grown:
                before = self._before.setdefault(place, DiskUse(here, entries))
                # Who empties a home has not earned room elsewhere.
                here, entries = max(0, here - before.size), max(0, entries - before.files)
            total, files = total + here, files + entries
        total += _without_a_name(self._processes(), seen, self._free_then)
        if closed:
            gone = self._gone(self._free_first or {})
            total, files = max(total, gone.size), max(files, gone.files)
        yield DiskUse(total, files)


def free_room(places: Sequence[str]) -> Mapping[int, DiskUse]:
    """What is free on each disk on which `places` are, by its number."""
    found: dict[int, DiskUse] = {}
    for place in filter(None, places):
        with suppress(OSError):
            disk = Path(place).stat().st_dev
            if disk not in found:
                about = os.statvfs(place)
                found[disk] = DiskUse(about.f_bfree * about.f_frsize, about.f_ffree)
    return found


def _sizes(place: str, seen: set[tuple[int, int]], closed: list[str]) -> Iterator[int]:
    """Bytes on the disk of everything below a directory, each file once. It is added to `closed` when not all can be seen."""
    for entry in entries_below(place, closed=lambda _: closed.append(place)):
        if not entry.is_directory and entry.about.st_nlink > 1:
            if (key := (entry.about.st_dev, entry.about.st_ino)) in seen:
                continue
            seen.add(key)
        yield entry.about.st_blocks * 512


def _without_a_name(processes: Sequence[int], seen: set[tuple[int, int]], disks: Collection[int]) -> int:
    """Bytes of files that processes have open and that are in no directory. What lies in memory takes no room on the `disks`."""
    total = 0
    in_memory = _devices_in_memory(processes).difference(disks)
    for pid in processes:
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    about = entry.stat()
                    if not stat.S_ISREG(about.st_mode) or about.st_nlink or about.st_dev in in_memory:
                        continue
                    if (about.st_dev, about.st_ino) not in seen:
                        seen.add((about.st_dev, about.st_ino))
                        total += about.st_blocks * 512
    return total


def _devices_in_memory(processes: Sequence[int]) -> set[int]:
    """Where files of memfd_create(2) are, and those in each /dev/shm, where PyTorch's workers share tensors without a name."""
    fd = os.memfd_create("")
    found = {os.fstat(fd).st_dev}
    os.close(fd)
    for pid in processes:
        with suppress(OSError):
            found.add(os.stat(f"/proc/{pid}/root/dev/shm").st_dev)  # noqa: PTH116 - there may be many
    return found
