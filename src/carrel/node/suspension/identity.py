"""Knowing a process again: pids are used anew, a pid with its start time is not."""

from __future__ import annotations

from pathlib import Path

from carrel.node.suspension.ports import Target


def start_of(pid: int) -> int | None:
    """Return field 22 of /proc/pid/stat (proc_pid_stat(5)), or None when the process is gone or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()  # the name before may hold spaces and parentheses
    if len(fields) < 20 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])


def is_alive(target: Target) -> bool:
    """Return True when this very process is there."""
    return start_of(target.pid) == target.start
