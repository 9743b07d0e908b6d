"""What prepares a job (a build's tool, what fetches inputs) is watched as a job's command is, by a process of its own.

`carrel.node.containment.program` starts it where walls have bounds. It stays outside of them, and ends as the program ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress

from carrel.core.domain.units import format_size
from carrel.node.containment.program import enter, fail, read_walls
from carrel.node.containment.walls import Bounds
from carrel.node.runner.cgroups import JobCgroup, find_parent
from carrel.node.runner.disk import DiskGuard, DiskUse
from carrel.node.runner.limits import MemoryGuard
from carrel.node.runner.samples import GpuWatch, Sampler
from carrel.node.runner.tree import descendants

#: Seconds between two looks where nothing has to be looked at.
_LONGEST = 60.0


def main() -> None:
    """Start the program that `start_program` described, and end it when it takes too much."""
    about = json.loads(sys.argv[2])
    walls = read_walls(about["walls"])
    bounds = walls.bounds
    assert bounds is not None
    disk = DiskGuard(DiskUse(bounds.disk, bounds.files), (), grown=bounds.places, processes=lambda: descendants(os.getpid()))
    disk.count_first()
    cgroup = _cgroup(bounds)
    pid = os.fork()
    if pid == 0:
        with suppress(OSError):  # then it was removed, and the program is not limited by it
            if cgroup is not None:
                with open(cgroup.procs, "w") as file:
                    file.write("0")
        enter(walls, about)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # its process group gets them, and the program acts
        signal.signal(number, signal.SIG_IGN)
    sampler = Sampler(GpuWatch({}), cgroup)
    sampler.files.shm = f"/proc/{pid}/root/dev/shm"
    memory = None if cgroup else MemoryGuard(bounds.memory or sys.maxsize, sampler)
    too_much = _watch(pid, bounds, disk, memory)
    _, status = os.waitpid(pid, 0)
    if cgroup is not None:
        if status and cgroup.oom_kills():
            too_much = _of_memory(cgroup.peak(), bounds)
        cgroup.remove()
    if too_much:
        fail(too_much)
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # SIGKILL has no other action
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _cgroup(bounds: Bounds) -> JobCgroup | None:
    parent = find_parent() if bounds.memory else None
    with suppress(OSError):  # then it is watched
        return JobCgroup(parent, f"carrel-prepares-{os.getpid()}", bounds.memory) if parent is not None else None
    return None


def _watch(pid: int, bounds: Bounds, disk: DiskGuard, memory: MemoryGuard | None) -> str:
    """Return when the program has ended, or was ended: why, else ""."""
    poll = select.poll()
    poll.register(os.pidfd_open(pid), select.POLLIN)
    disk_at = memory_at = time.monotonic()
    while True:
        now = time.monotonic()
        if now >= disk_at:
            taken, pause = disk.look()
            disk_at = now + pause
            if taken is not None:
                _end(pid)
                return _of_disk(taken, bounds)
        if memory is not None and now >= memory_at:
            used, pause = memory.look()
            memory_at = now + pause
            if used is not None:
                _end(pid)
                return _of_memory(used, bounds)
        until = min(disk_at, memory_at if memory is not None else now + _LONGEST)
        if poll.poll(1000 * max(0.0, until - time.monotonic())):
            return ""


def _end(pid: int) -> None:
    """Kill all that is inside. The process `pid` outside ends by itself, as soon as it has built the walls."""
    for found in [found for found in descendants(os.getpid()) if found != pid] or [pid]:
        with suppress(ProcessLookupError):
            os.kill(found, signal.SIGKILL)


def _of_disk(taken: DiskUse, bounds: Bounds) -> str:
    had, most, setting = format_size(taken.size), format_size(bounds.disk), "disk_limit"
    if not 0 < bounds.disk < taken.size:
        had, most, setting = f"{taken.files} files", f"{bounds.files}", "disk_files"
    return f"It took {had} on the disk, and what prepares a job may take {most} ({setting}); an administrator can raise that."


def _of_memory(used: int, bounds: Bounds) -> str:
    most = f"what prepares a job may take {format_size(bounds.memory)} (prepare_memory)"
    return f"It took {format_size(used)} of memory, and {most}; an administrator can raise that."
