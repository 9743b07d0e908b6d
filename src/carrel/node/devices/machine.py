"""This machine as one node: what may be used of it, which is often less than what it has."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from carrel.core.domain.node import Device, Node
from carrel.core.domain.units import GIB, MIB

_ROOT = Path("/")


def this_node(devices: Sequence[Device] = (), *, name: str | None = None, reserve: int | None = None, root: Path = _ROOT) -> Node:
    """Return this machine with `devices`.

    Processors: those that this process may run on (sched_getaffinity(2)), and no more than its cgroup's quota, rounded
    down, at least 1. Memory: the smaller of the machine's and the cgroup's limit, less `reserve` bytes for everything that
    is not a job (default: a tenth, between 256 MiB and 4 GiB). `root` is where /proc and /sys are.
    """
    cpus = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    if quota is not None:
        cpus = min(cpus, max(1, math.floor(quota)))
    memory = total_memory(root)
    limit = memory_limit(root)
    if limit is not None:
        memory = min(memory, limit)
    kept = min(4 * GIB, max(256 * MIB, memory // 10)) if reserve is None else reserve
    return Node(
        name=name or socket.gethostname().split(".")[0], cpus=cpus, memory=max(MIB, memory - kept), devices=tuple(devices)
    )


def total_memory(root: Path = _ROOT) -> int:
    """Return MemTotal of proc_meminfo(5), in bytes."""
    match = re.search(r"^MemTotal:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def shares_huge_pages(root: Path = _ROOT) -> bool:
    """Return whether memory that processes share may lie in huge pages, if they ask for it (madvise(2), MADV_HUGEPAGE).

    The kernel's `transparent_hugepage/shmem_enabled` says so; most systems come with "never".
    """
    setting = _read(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled") or ""
    return any(f"[{word}]" in setting for word in ("always", "within_size", "advise", "force"))


def available_memory(root: Path = _ROOT) -> int:
    """Return how many bytes can be taken without anybody being short: MemAvailable of proc_meminfo(5), or less.

    Less where the cgroup of this process has a limit; what it keeps of files is given up for others and counts as free.
    """
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    available = int(match[1]) * 1024 if match else 0
    for directory in _ancestors(root, "memory"):
        limit = (_read(directory / "memory.max") or "").strip()
        current = (_read(directory / "memory.current") or "").strip()
        if limit.isdigit() and current.isdigit():
            files = re.search(r"^inactive_file (\d+)$", _read(directory / "memory.stat") or "", re.MULTILINE)
            available = min(available, int(limit) - int(current) + (int(files[1]) if files else 0))
    return max(0, available)


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the processors that the cgroup (v2 cpu.max, v1 cpu.cfs_quota_us) of this process may use, or None: no limit."""
    found: list[float] = []
    for directory in _ancestors(root, "cpu"):
        words = (_read(directory / "cpu.max") or "").split()
        if not words:
            words = [
                *(_read(directory / "cpu.cfs_quota_us") or "").split(),
                *(_read(directory / "cpu.cfs_period_us") or "").split(),
            ]
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:  # "max" and -1 mean no limit
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the bytes that the cgroup (v2 memory.max, v1 memory.limit_in_bytes) of this process may use, or None."""
    found: list[int] = []
    for directory in _ancestors(root, "memory"):
        text = (_read(directory / "memory.max") or _read(directory / "memory.limit_in_bytes") or "").strip()
        if text.isdigit() and int(text) < 2**60:  # v1 says "no limit" with a number near 2**63
            found.append(int(text))
    return min(found, default=None)


def _ancestors(root: Path, controller: str) -> list[Path]:
    """Return this process' cgroup directory for `controller` and all directories above it (cgroups(7), /proc/pid/cgroup)."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            base = base if base.is_dir() else root / "sys/fs/cgroup" / controller
        elif hierarchy == "0" and (root / "sys/fs/cgroup/cgroup.controllers").exists():
            base = root / "sys/fs/cgroup"
        else:
            continue
        here = base / path.lstrip("/")
        return [here, *(parent for parent in here.parents if parent.is_relative_to(base))]
    return []


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None
