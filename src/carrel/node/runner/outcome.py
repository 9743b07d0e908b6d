"""How a command ended, as its watch saw it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from carrel.core.domain.job import Preemption


class Cause(Enum):
    """Why Carrel ended a command."""

    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    TIME = "time"
    MEMORY = "memory"
    DISK = "disk"
    #: Its GPU state could not be brought back after a pause.
    STATE_LOST = "state lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended, as seen by its runner."""

    #: As `os.waitstatus_to_exitcode` gives it: the exit code, or minus the signal; None if the kernel did not let it go.
    status: int | None
    #: None when it ended by itself.
    cause: Cause | None = None
    #: True when it had the warning before the end of the walltime that it asked for.
    warned: bool = False
    #: Bytes in use when they were too many, for `Cause.MEMORY`.
    memory: int = 0
    #: Bytes and files that it had on the disk when they were too many, for `Cause.DISK`.
    disk: tuple[int, int] = (0, 0)
    #: What it gave way to, for `Cause.PREEMPTED`.
    preemption: Preemption | None = None
    #: How long it ran, in seconds, without the time for which it was stopped.
    seconds: float = 0.0
    #: Processes that the command left behind and that were killed.
    left_behind: int = 0
    #: Processes that did not go away.
    stuck: tuple[int, ...] = ()
