"""The processes of a job, as proc(5) shows them.

The runner is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)): all that a job starts, daemons that forked twice included,
is a descendant of the runner until it is dead and reaped. wait4(2) with ECHILD is therefore proof that nothing is left.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

#: Of smaps_rollup (proc(5)): what is mapped in all, and what of it are files in memory, in kB.
_PSS = re.compile(r"^Pss(|_Shmem): +(\d+) kB", re.MULTILINE)
#: Of status (proc(5)).
_STATUS = re.compile(r"^(VmSwap|SigCgt):\s*(.+)$", re.MULTILINE)
#: Seconds that a process has to vanish after SIGKILL.
_KILLED = 30.0


def descendants(root: int) -> list[int]:
    """Return the processes below `root`, parents first. Some may be missing while they fork; call again until none is left."""
    if not _exists(f"/proc/{root}/task/{root}/children"):  # CONFIG_PROC_CHILDREN is off
        return _descendants_by_scan(root)
    found: list[int] = []
    todo = [root]
    while todo:
        pid = todo.pop()
        children = _children(pid)
        found += children
        todo += children
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = [entry.name for entry in os.scandir(f"/proc/{pid}/task")]
    except OSError:
        return found
    for thread in threads:
        found += [int(child) for child in read_proc(f"/proc/{pid}/task/{thread}/children").split()]
    return found


def _descendants_by_scan(root: int) -> list[int]:
    by_parent: defaultdict[int, list[int]] = defaultdict(list)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                by_parent[int(fields[1])].append(int(entry.name))
    found: list[int] = []
    todo = [root]
    while todo:
        children = by_parent.pop(todo.pop(), [])
        found += children
        todo += children
    return found


def stop_all(root: int) -> None:
    """Stop every process below `root` (SIGSTOP), also those that are forked meanwhile: one that is stopped forks no more."""
    stopped: set[int] = set()
    while fresh := set(descendants(root)) - stopped:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped |= fresh


def continue_all(root: int) -> None:
    """Let every process below `root` go on (SIGCONT)."""
    for pid in descendants(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def ask_to_end(root: int, *, group: int | None) -> None:
    """SIGTERM to every process below `root`, once, as in Slurm; those of the command's own process `group` get it at one moment.

    A program may be behind one that passes nothing on, in a group or a session of its own (setsid(1), launchers). timeout(1) only
    passes it on, and would be the second to tell its program. A stopped process takes no other signal until it goes on, so
    SIGCONT follows.
    """
    told = descendants(root)
    passes_on = {pid for pid in told if read_proc(f"/proc/{pid}/comm") == "timeout\n"}
    if group is not None and not any(_group_of(pid) == group for pid in passes_on):
        told = [-group, *(pid for pid in told if _group_of(pid) not in (None, group))]
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in told:
            if number == signal.SIGCONT or pid not in passes_on:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def end_process(pidfd: int, patience: float = 10.0) -> None:
    """SIGTERM to one process, and after `patience` seconds SIGKILL; return when it is gone."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILLED)):
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)
        if poll.poll(seconds * 1000):
            return


@dataclass(frozen=True, slots=True)
class TreeUse:
    """What a set of processes uses."""

    #: Processor seconds, with those of children that were waited for.
    cpu_seconds: float
    #: Bytes resident; memory that processes share is counted once where that is cheap to know.
    memory: int
    #: Those of them that are shared, or of files.
    shared: int


def measure(pids: list[int]) -> TreeUse:
    """Return what `pids` use now; processes that end meanwhile count nothing."""
    ticks = private = shared = 0
    for pid in pids:
        fields = _stat(pid)
        if fields:
            ticks += sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
        pages = read_proc(f"/proc/{pid}/statm").split()
        if len(pages) > 2:
            private += int(pages[1]) - int(pages[2])
            shared = max(shared, int(pages[2]))
    return TreeUse(cpu_seconds=ticks / _TICK, memory=(private + shared) * _PAGE, shared=shared * _PAGE)


@dataclass(frozen=True, slots=True)
class Waits:
    """What a process waits for, as far as the kernel tells."""

    parent: int
    #: True while its main thread waits for a disk.
    disk: bool
    #: Pages that it has read from a disk because they were not in memory.
    faults: int
    #: Bytes of it that are swapped out.
    swapped: int
    #: Signals that it handles, as bits.
    handles: int


def waits_of(pid: int) -> Waits | None:
    """What one process waits for; None: it is gone."""
    fields, status = _stat(pid), dict(_STATUS.findall(read_proc(f"/proc/{pid}/status")))
    if len(fields) < 10:
        return None
    return Waits(
        parent=int(fields[1]),
        disk=fields[0] == "D",
        faults=int(fields[9]),
        swapped=int(status.get("VmSwap", "0 kB").split()[0]) * 1024,
        handles=int(status.get("SigCgt", "0"), 16),
    )


def proportional_memory(pids: list[int], in_files: int = 0) -> int | None:
    """Return the bytes that `pids` hold with shared pages divided fairly (PSS), or None where the kernel does not tell.

    `in_files` of them are in files in memory, mapped or not. Exact and slow (it walks page tables): only for a decision about
    life and death.
    """
    total = mapped = 0
    for pid in pids:
        found = dict(_PSS.findall(read_proc(f"/proc/{pid}/smaps_rollup")))
        if "" in found:
            total += int(found[""]) * 1024
            mapped += int(found.get("_Shmem", 0)) * 1024
        elif _exists(f"/proc/{pid}/smaps_rollup"):
            # It ended meanwhile, or does not let itself be looked into (prctl(2), PR_SET_DUMPABLE).
            total += measure([pid]).memory
        elif _exists(f"/proc/{pid}"):
            return None
    return total - mapped + max(mapped, in_files)


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/pid/stat after the command's name (which may hold blanks and brackets)."""
    text = read_proc(f"/proc/{pid}/stat")
    return text[text.rfind(")") + 2 :].split()


def _exists(path: str) -> bool:
    return os.access(path, os.F_OK)


def read_proc(path: str) -> str:
    """Return the text of a file of the kernel's, "" when it is not there (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        chunks = []
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
        return b"".join(chunks).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)
