"""The machine-wide locks of a job's devices, which its runner has by their descriptors (`carrel.node.devices.locks`)."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence


def unlock(locks: Sequence[int]) -> None:
    """Others may have the devices. The descriptors stay open for `lock`."""
    for fd in locks:
        fcntl.flock(fd, fcntl.LOCK_UN)


def lock(locks: Sequence[int]) -> bool:
    """Have all devices again, or none: False when somebody else has one. Those that are had already do no harm."""
    try:
        for fd in locks:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        unlock(locks)
        return False
    return True
