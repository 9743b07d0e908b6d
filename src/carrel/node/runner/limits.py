"""What a job may not pass: its walltime and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from carrel.node.runner.samples import Sampler
from carrel.node.runner.tree import proportional_memory


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The walltime of a command, in monotonic seconds."""

    #: SIGTERM to the process group, ahead of the end; infinite where nobody has asked for that.
    warn_at: float
    #: The walltime is over: SIGTERM, and SIGKILL to everything after the grace.
    end_at: float


def deadlines(start: float, walltime: float, warning: float) -> Deadlines:
    """Return when a command that started at `start` is warned and ended.

    The warning comes `warning` seconds before the end, but not in the first half of the walltime; 0: there is none.
    """
    end_at = start + walltime
    return Deadlines(warn_at=end_at - min(warning, walltime / 2) if warning else inf, end_at=end_at)


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
        exact = proportional_memory(self._sampler.processes)
        if exact is not None and exact <= self._limit:
            return None, _LONGEST / 2
        return (used if exact is None else exact), _LONGEST
