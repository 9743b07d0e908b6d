"""The memory that a job may not pass."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from carrel.node.runner.file_memory import files_in_memory
from carrel.node.runner.samples import Sampler
from carrel.node.runner.tree import measure, proportional_memory

#: Seconds between two looks at memory, at the least and at the most.
_SHORTEST, _LONGEST = 0.1, 1.0
#: Bytes per second that a process is trusted not to pass when the time of the next look is chosen.
_GROWTH = 4 * 1024**3


class MemoryGuard:
    """Watches the memory of a job where the kernel cannot do it (no cgroup): looks more often the closer the limit is."""

    def __init__(self, limit: int, sampler: Sampler) -> None:
        self._limit = limit
        self._sampler = sampler

    def look(self) -> tuple[int | None, float]:
        """Return the bytes in use if that is too much (else None), and in how many seconds to look again."""
        used = self._sampler.look()
        if used <= self._limit:
            return None, min(_LONGEST, max(_SHORTEST, (self._limit - used) / _GROWTH))
        # Pages that forked workers share were counted for each of them: only the exact figure may end a job.
        exact = proportional_memory(self._sampler.processes, self._sampler.in_files)
        if exact is not None and exact <= self._limit:
            return None, _LONGEST / 2
        return (used if exact is None else exact), _LONGEST


@dataclass(frozen=True, slots=True)
class Killed:
    """A process that was killed."""

    pid: int
    #: Bytes that it had.
    memory: int


def kill_largest(pids: Iterable[int]) -> Killed | None:
    """SIGKILL to that of the processes that has most memory; None where there is no process."""
    largest = max((Killed(pid, _held(pid)) for pid in pids), key=lambda one: one.memory, default=None)
    if largest is not None:
        with suppress(ProcessLookupError):
            os.kill(largest.pid, signal.SIGKILL)
    return largest


def _held(pid: int) -> int:
    use = measure([pid])
    return use.memory - use.shared + max(use.shared, sum(files_in_memory([pid]) or ()))
