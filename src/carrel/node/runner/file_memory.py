"""Memory that a job holds in files: those of memfd_create(2), its own /dev/shm, and mappings that processes share.

What of it no process has mapped is in no resident size, and where the job has no cgroup nobody else counts it. Not seen is what
neither is mapped nor has a descriptor: descriptors on their way through a socket, segments of shmget(2) that are let go of.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress

from carrel.core.domain.ports import Clock
from carrel.node.runner.tree import read_proc

#: Bytes for which nothing is looked through.
_LITTLE = 16 * 1024**2
#: Descriptors and mappings that are looked through at the most.
_MOST = 200_000
#: How many times as long as it looks it then goes by what it has found.
_REST = 10.0
#: A mapping of a file in memory: from, to, offset, device, inode (proc(5), /proc/pid/maps).
_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) (\S+) (\d+) +/(?:memfd:|dev/zero \(deleted\)|SYSV)", re.MULTILINE)


class FileMemory:
    """What one job holds in files in memory."""

    def __init__(self, monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        #: Where the job's own /dev/shm is seen from here; "": it has the machine's.
        self.shm = ""
        self._found = 0
        self._again_at = 0.0

    def look(self, pids: Sequence[int]) -> int:
        """Return the bytes of them that these processes hold.

        The kernel says how much of such memory there is on the whole machine: only where that is worth it they are looked for.
        """
        own = _used(self.shm) if self.shm else 0
        others = machine_shared() - own
        if others <= _LITTLE:
            return own
        began = self._monotonic()
        if began >= self._again_at:
            found = files_in_memory(pids)
            # Who has more of them than can be looked through may have all that there is.
            self._found = others if found is None else found[0] + min(found[1], max(0, others - found[0]))
            now = self._monotonic()
            self._again_at = now + _REST * (now - began)
        return own + min(self._found, others)


def machine_shared() -> int:
    """Return the bytes of all files in memory on this machine (proc(5), meminfo), mapped or not."""
    match = re.search(r"^Shmem:\s+(\d+) kB", read_proc("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def files_in_memory(pids: Sequence[int], most: int = _MOST) -> tuple[int, int] | None:
    """Return the bytes of files in memory that processes have open, and those that are only mapped; None: they have too many.

    Of the latter the kernel tells not how large they are, but how much of their size is mapped.
    """
    sizes: dict[tuple[str, int], int] = {}
    spans: dict[tuple[str, int], int] = {}
    for pid in pids:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                most -= 1
                if most < 0:
                    return None
                with suppress(OSError):
                    # Its name first: to ask for the size of another file may wait for a server.
                    if os.readlink(entry.path).startswith("/memfd:"):  # noqa: PTH115 - there may be many
                        about = entry.stat()
                        device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}"
                        sizes[device, about.st_ino] = about.st_blocks * 512
        maps = read_proc(f"/proc/{pid}/maps")
        most -= maps.count("\n")
        for begin, end, offset, device, inode in _MAPPED.findall(maps):
            file = device, int(inode)
            spans[file] = max(spans.get(file, 0), int(offset, 16) + int(end, 16) - int(begin, 16))
    return sum(sizes.values()), sum(span for file, span in spans.items() if file not in sizes)


def _used(mount: str) -> int:
    try:
        about = os.statvfs(mount)
    except OSError:  # the job has ended
        return 0
    return (about.f_blocks - about.f_bfree) * about.f_frsize
