"""What clusters for tests take of the machine, and how it gets it back: ports, processes, directories."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from carrel.testing.waiting import wait_until

#: How the directories of clusters begin.
PREFIX = "carrel-slurm-"
#: Locked as long as the process lives that started the cluster.
_OWNER = "owner"
#: Ports that the kernel does not give to outgoing connections (ip(7), ip_local_port_range).
_PORTS = range(20000, 32000)


class SiteError(Exception):
    """A daemon did not come up; the message has what it said."""


def free_ports(number: int) -> list[int]:
    """Return ports of loopback on which nobody listens now."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(_PORTS, len(_PORTS)):
            listener = stack.enter_context(socket.socket())
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == number:
                return found
    raise SiteError(f"No {number} ports are free between {_PORTS.start} and {_PORTS.stop}.")


def sweep(directory: Path | None = None) -> None:
    """Remove what clusters have left whose process was killed; `directory`: where clusters are made, if not the usual one."""
    for root in (directory or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        try:
            with open(root / _OWNER, "r+") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if file.read():  # else its owner is just about to lock it
                    kill_marked(f"SLURM_CONF={root}/etc/slurm.conf")
                    remove(root)
        except OSError:
            continue


def remove(root: Path) -> None:
    """Remove the directory of a cluster, and the small file systems in it."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if (place := line.split()[1]).startswith(f"{root}/"):
            subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(root, ignore_errors=True)


def lock(root: Path) -> int:
    """Take the directory for this process; it is not swept away while the descriptor is open."""
    fd = os.open(root / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, b"%d\n" % os.getpid())
    return fd


def kill_marked(variable: str) -> None:
    """Kill every process that was started with `variable` ("NAME=value") in its environment, and wait until none is left.

    Nodes' jobs and their shepherds are nobody's children here, but they carry the name of their own cluster.
    """
    mark = b"\0" + variable.encode() + b"\0"

    def none_left() -> bool:
        found = [pid for pid in _processes() if mark in b"\0" + _environ(pid)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    wait_until(none_left, f"the end of every process with {variable}")


def _processes() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit() and int(entry.name) != os.getpid()]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()  # empty for one that has ended but was not waited for
    except OSError:
        return b""
