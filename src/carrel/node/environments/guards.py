"""Locks that the kernel drops with their holder (flock(2)): who builds, and who still uses an environment.

A builder or the garbage collector holds a guard exclusively, a job that uses the environment holds it shared. The tools that
a builder starts inherit the descriptor: when a builder is killed, its orphaned tool still keeps others out until it ends too.
The modification time of a guard's file is when the environment was last used.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from carrel.node.environments.errors import EnvironmentStopped, EnvironmentTimeout

#: Seconds between two looks at a lock that somebody else holds.
_POLL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimit:
    """How long the caller is willing to wait: a monotonic deadline, and a question asked at least every 0.2 s."""

    #: By `time.monotonic`, or None to wait for ever.
    deadline: float | None
    stop: Callable[[], bool]

    def check(self) -> None:
        """Raise `EnvironmentStopped` or `EnvironmentTimeout` when it is over."""
        if self.stop():
            raise EnvironmentStopped("The preparation of the environment was stopped.")
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise EnvironmentTimeout(
                "The environment was not ready in the time that the lab allows for preparing a job.",
                remedy="Submit again (what was downloaded is kept), or ask an administrator for more time.",
            )


class OpenGuard:
    """An open guard. Close it, or leave its `with` block, to let go; it goes with the process in any case."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        #: Descriptor with the lock, close-on-exec; -1 once closed.
        self.fd = fd

    def close(self) -> None:
        """Let go; again is harmless."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def touch(self) -> None:
        """Note that the environment is used now."""
        os.utime(self.fd)

    def __enter__(self) -> OpenGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def try_shared(path: Path) -> OpenGuard | None:
    """Hold the guard together with others; None when a builder or the collector has it."""
    return _try(path, fcntl.LOCK_SH)


def try_exclusive(path: Path) -> OpenGuard | None:
    """Hold the guard alone; None when anybody else has it."""
    return _try(path, fcntl.LOCK_EX)


def wait_exclusive(
    path: Path, patience: WaitLimit, *, satisfied: Callable[[], bool], waiting: Callable[[], None]
) -> OpenGuard | None:
    """Hold the guard alone, waiting for others to let go; None as soon as `satisfied` makes that needless.

    `waiting` is called once, when somebody else has it.
    """
    told = False
    while True:
        if satisfied():
            return None
        hold = try_exclusive(path)
        if hold is not None and satisfied():  # by the one who had it until now
            hold.close()
            return None
        if hold is not None:
            return hold
        patience.check()
        if not told:
            told = True
            waiting()
        time.sleep(_POLL)


def _try(path: Path, operation: int) -> OpenGuard | None:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            # The collector removes guards: a lock on a file that is no longer at its path guards nothing.
            if os.fstat(fd).st_nlink:
                return OpenGuard(fd)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
