"""What a job may take of the disk: counted when the disk itself says that it could be too much by now."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

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
_SHORTEST, _LONGEST = 0.25, 5.0
#: Seconds after which all is counted again although the disk has lost no room: others may have freed some meanwhile.
_AGAIN = 60.0
#: How many times as long as it counts it then waits.
_REST = 4.0
#: Bytes per second that a job is trusted not to pass when the time of the next look is chosen.
_GROWTH = 4 * 1024**3


def disk_guard(launch: Launch, directory: AttemptDirectory, prepared: Prepared) -> DiskGuard | None:
    """Return what watches a command of this process, None where it has no limit. A notebook's own directory is its owner's."""
    if not launch.limits.disk:
        return None
    places = [directory.work, directory.checkpoint, private_temporary(directory), prepared.places.temporary]
    home = launch.walls.home if launch.walls is not None else ""
    # Who runs the lab has their own home, in which they may do what they like.
    in_lab = bool(home) and any(is_inside(Path(part), Path(home)) for part in launch.paths.closed[:1])
    return DiskGuard(
        launch.limits.disk,
        [os.path.realpath(place) for place in places if place],
        home=os.path.realpath(home) if in_lab else "",
        processes=lambda: descendants(os.getpid()),
    )


class DiskGuard:
    """Watches what a job has on the disk.

    Free room is asked for often, which costs nothing; files are counted only where so much of it has gone since the last count
    that the job could have passed its limit, and once a minute.
    """

    def __init__(
        self,
        limit: int,
        places: Sequence[str],
        *,
        home: str = "",
        processes: Callable[[], Sequence[int]] = tuple,
        free: Callable[[Sequence[str]], Mapping[int, int]] | None = None,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """`places`: directories of the job alone. `home`: its owner's; what was there at the first count is not the job's.

        `processes`: those of the job, which may have files open that have no name any more.
        """
        self._limit = limit
        self._places = places
        self._home = home
        self._processes = processes
        self._free = free or free_room
        self._monotonic = monotonic
        self._count: Iterator[int | None] | None = None
        self._before: int | None = None
        self._used = 0
        #: Free room at the beginning; what is gone since then counts as the job's where something cannot be looked into.
        self._free_first: Mapping[int, int] | None = None
        #: Free room when the last count began, and when that was.
        self._free_then: Mapping[int, int] = {}
        self._counted_at = -_AGAIN

    def look(self) -> tuple[int | None, float]:
        """Return the bytes that the job has if they are too many (else None), and in how many seconds to look again."""
        began = self._monotonic()
        if self._count is None:
            room, gone = self._limit - self._used, self._gone(self._free_then)
            if gone < max(room, self._limit // 100) and began - self._counted_at < _AGAIN:
                return None, min(_LONGEST, max(_SHORTEST, (room - gone) / _GROWTH))
            self._free_then, self._counted_at = self._free([*self._places, self._home]), began
            self._free_first = self._free_first or self._free_then
            self._count = self._counting()
        found = next(self._count)
        if found is None:
            return None, _REST * (self._monotonic() - began)
        self._count, self._used = None, found
        return (found if found > self._limit else None), _SHORTEST

    def _gone(self, before: Mapping[int, int]) -> int:
        now = self._free([*self._places, self._home])
        return sum(max(0, room - now.get(disk, room)) for disk, room in before.items())

    def _counting(self) -> Iterator[int | None]:
        """None for each part that is done, then the sum."""
        seen: set[tuple[int, int]] = set()
        closed: list[str] = []
        total = home = 0
        for place in (*self._places, self._home):
            sizes = _sizes(place, seen, closed) if place else iter(())
            while part := list(islice(sizes, _PART)):
                total += sum(part)
                home += sum(part) if place == self._home else 0
                yield None
        if self._before is None:
            self._before = home
        # Who empties a home has not earned room elsewhere.
        used = total - min(home, self._before) + _without_a_name(self._processes(), seen)
        yield max(used, self._gone(self._free_first or {})) if closed else used


def free_room(places: Sequence[str]) -> Mapping[int, int]:
    """Bytes that are free on each disk on which `places` are, by its number."""
    found: dict[int, int] = {}
    for place in filter(None, places):
        with suppress(OSError):
            disk = Path(place).stat().st_dev
            if disk not in found:
                about = os.statvfs(place)
                found[disk] = about.f_bfree * about.f_frsize
    return found


def _sizes(place: str, seen: set[tuple[int, int]], closed: list[str]) -> Iterator[int]:
    """Bytes on the disk of everything below a directory, each file once. It is added to `closed` when not all can be seen."""
    for entry in entries_below(place, closed=lambda: closed.append(place)):
        if not entry.is_directory and entry.about.st_nlink > 1:
            if (key := (entry.about.st_dev, entry.about.st_ino)) in seen:
                continue
            seen.add(key)
        yield entry.about.st_blocks * 512


def _without_a_name(processes: Sequence[int], seen: set[tuple[int, int]]) -> int:
    """Bytes of files that processes have open and that are in no directory."""
    total = 0
    for pid in processes:
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    about = entry.stat()
                    if stat.S_ISREG(about.st_mode) and not about.st_nlink and (about.st_dev, about.st_ino) not in seen:
                        seen.add((about.st_dev, about.st_ino))
                        total += about.st_blocks * 512
    return total
