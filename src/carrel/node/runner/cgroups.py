"""A memory cgroup per job, where this user may make one: the kernel then counts exactly and ends what grows too large.

cgroups(7); kernel documentation admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. Version 2 is used below the first
ancestor that is ours to write and hands the memory controller to its children (systemd: Delegate=yes); version 1 below our
own directory. Where neither works the runner watches the job's processes instead (`carrel.node.runner.limits`).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from carrel.node.runner.tree import read_proc


@dataclass(frozen=True, slots=True)
class CgroupParent:
    """Where cgroups for jobs can be made."""

    path: str
    version: int


def find_parent() -> CgroupParent | None:
    """Return where this process can make cgroups with memory limits, or None. Makes one to be sure, and removes it."""
    for candidate in _candidates():
        path = Path(candidate.path, f"carrel-trial-{os.getpid()}")
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            if os.access(f"{path}/{_LIMIT[candidate.version]}", os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK):
                return candidate
        finally:
            with suppress(OSError):
                path.rmdir()
    return None


_LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}


def _candidates() -> list[CgroupParent]:
    found = []
    for line in read_proc("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append(CgroupParent(f"/sys/fs/cgroup/memory{path}".rstrip("/"), 1))
        elif number == "0":
            here = Path("/sys/fs/cgroup") / path.lstrip("/")
            for directory in (here, *here.parents):
                # Moving a process needs write access to cgroup.procs of the common ancestor: one that is ours.
                if "memory" in read_proc(f"{directory}/cgroup.subtree_control").split() and os.access(
                    f"{directory}/cgroup.procs", os.W_OK
                ):
                    found.append(CgroupParent(str(directory), 2))
                    break
                if directory == Path("/sys/fs/cgroup"):
                    break
    return found


class JobCgroup:
    """The cgroup of one attempt."""

    def __init__(self, parent: CgroupParent, name: str, limit: int, *, together: bool = True) -> None:
        """Make it, with `limit` bytes. Raises `OSError` when the kernel refuses.

        `together`: at the limit the kernel ends all processes, else the one that it finds worst (version 1: always so).
        """
        self._version = parent.version
        self.path = f"{parent.path}/{name}"
        with suppress(FileExistsError):
            Path(self.path).mkdir()
        try:
            _write(f"{self.path}/{_LIMIT[self._version]}", str(limit))
            extras = (
                {"memory.memsw.limit_in_bytes": str(limit)}
                if self._version == 1
                else {"memory.swap.max": "0", "memory.oom.group": str(int(together))}
            )
            for file, value in extras.items():
                with suppress(OSError):  # no swap accounting in this kernel
                    _write(f"{self.path}/{file}", value)
        except OSError:
            self.remove()
            raise

    @property
    def procs(self) -> str:
        """The file into which a process writes "0" to enter."""
        return f"{self.path}/cgroup.procs"

    def memory(self) -> int:
        """Return the bytes that cannot be given back by dropping caches: anonymous and shared memory."""
        stat = read_proc(f"{self.path}/memory.stat")
        names = ("total_rss", "total_shmem") if self._version == 1 else ("anon", "shmem")
        return sum(int(match[1]) for name in names if (match := re.search(rf"^{name} (\d+)$", stat, re.MULTILINE)))

    def peak(self) -> int:
        """Return the most that was ever charged, caches included."""
        text = read_proc(f"{self.path}/{'memory.max_usage_in_bytes' if self._version == 1 else 'memory.peak'}").strip()
        return int(text) if text.isdigit() else 0

    def oom_kills(self) -> int:
        """Return how many processes the kernel killed here because the limit was reached."""
        file = "memory.oom_control" if self._version == 1 else "memory.events"
        match = re.search(r"^oom_kill (\d+)$", read_proc(f"{self.path}/{file}"), re.MULTILINE)
        return int(match[1]) if match else 0

    def remove(self) -> None:
        """Remove it; it must be empty (what is left of an attempt is killed before)."""
        remove_cgroup(self.path)


def cgroups_below(path: str) -> list[str]:
    """Return a cgroup and those that its processes have made below it, parents first; nothing where it is gone."""
    found, todo = [], [path]
    while todo:
        place = todo.pop()
        with suppress(OSError), os.scandir(place) as entries:
            todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            found.append(place)
    return found


def remove_cgroup(path: str) -> None:
    """Remove a cgroup and what is below it, as far as no process is in it."""
    for place in reversed(cgroups_below(path)):
        with suppress(OSError):
            os.rmdir(place)  # noqa: PTH106


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def machine_oom_kills() -> int:
    """Return how many processes the kernel's OOM killer ended on this machine since it started (proc(5), vmstat)."""
    match = re.search(r"^oom_kill (\d+)$", read_proc("/proc/vmstat"), re.MULTILINE)
    return int(match[1]) if match else 0
