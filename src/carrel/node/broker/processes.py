"""Processes, named so that a reused pid is never taken for another: pid, start time, pidfd."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from carrel.core.transport.channel import peer_credentials

#: Number of SO_PEERPIDFD in <asm-generic/socket.h>; Linux 6.5 and newer.
_SO_PEERPIDFD = 77


class ProcessGone(Exception):
    """The process does not exist any more."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that exists, or did; `pidfd` becomes readable when it ends, and belongs to the holder of this."""

    pid: int
    #: Field 22 of proc_pid_stat(5), clock ticks since boot.
    start: int
    uid: int
    pidfd: int

    @property
    def name(self) -> str:
        """One name for this process, never used again on this machine until it boots."""
        return f"{self.pid}-{self.start}"

    def kill(self, number: int) -> None:
        """Send a signal (pidfd_send_signal(2)); nothing happens when it is gone. Raises `PermissionError`."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def copy(self) -> Process:
        """The same process, with a pidfd of its own."""
        return replace(self, pidfd=os.dup(self.pidfd))

    def close(self) -> None:
        """Let go of the pidfd."""
        os.close(self.pidfd)


def peer(connection: socket.socket) -> Process:
    """The process at the other end of a unix socket, as it was when it connected. Raises `ProcessGone`."""
    found = peer_credentials(connection)
    try:
        descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        descriptor = -1
    return _described(found.pid, found.uid, descriptor)


def find(pid: int, start: int, uid: int) -> Process:
    """The process that was known by pid and start time. Raises `ProcessGone` when it ended, also if another process has its pid
    now."""
    found = _described(pid, uid, -1)
    if found.start != start:
        found.close()
        raise ProcessGone(f"process {pid} ended")
    return found


def _described(pid: int, uid: int, pidfd: int) -> Process:
    if pid <= 0:
        raise ProcessGone("the process is in another pid namespace")
    try:
        descriptor = pidfd if pidfd >= 0 else os.pidfd_open(pid)
    except OSError as error:
        raise ProcessGone(f"process {pid} cannot be watched: {error.strerror}") from error
    try:
        start = start_time(pid)
        # Looked at after the stat file was read: if it lives now, the file was about it.
        if start is None or has_ended(descriptor):
            raise ProcessGone(f"process {pid} ended")
    except BaseException:
        os.close(descriptor)
        raise
    return Process(pid, start, uid, descriptor)


def has_ended(pidfd: int) -> bool:
    """True when the process behind a pidfd has ended (pidfd_open(2))."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _stat(pid: int) -> list[str] | None:
    """Fields of proc_pid_stat(5) from the third one on; the second, the name, may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return text[text.rindex(b")") + 2 :].decode("ascii", "replace").split()


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot, or None when there is none."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def is_alive(name: str) -> bool:
    """True while the process of this name (`Process.name`) has not ended."""
    pid, _, start = name.partition("-")
    return start_time(int(pid)) == int(start)


def name_of(pid: int) -> str:
    """What the process calls itself (proc_pid_comm(5)), or ""."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def wait_for_marked(variable: str, family: str, own: str, seconds: float) -> int:
    """Wait for the end of all processes that have `variable` with `family`, ":" and anything but `own` (proc_pid_environ(5)).

    At most so many seconds; returns how many are left.
    """
    begin, mine = f"{variable}={family}:".encode(), f"{variable}={family}:{own}".encode()
    poll = select.poll()
    left: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if any(item.startswith(begin) and item != mine for item in variables):
                    descriptor = os.pidfd_open(int(entry.name))
                    left[descriptor] = int(entry.name)
                    poll.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    try:
        while left and time.monotonic() < deadline:
            for descriptor, _event in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                poll.unregister(descriptor)
                os.close(descriptor)
                del left[descriptor]
        return len(left)
    finally:
        for descriptor in left:
            os.close(descriptor)


def roots(pids: Iterable[int], known: Iterable[int]) -> dict[int, int]:
    """For each of `pids` that is one of `known` or descends from one: which of `known`."""
    wanted = set(known)
    found: dict[int, int] = {}
    for pid in pids:
        at, steps = pid, 0
        while at > 1 and at not in wanted and steps < 100:
            fields = _stat(at)
            at, steps = (int(fields[1]) if fields else 0), steps + 1
        if at in wanted:
            found[pid] = at
    return found
