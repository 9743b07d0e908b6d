"""How long a command has computed, and when its walltime is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf


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


class RunningTime:
    """The time of one command. It does not compute while it is stopped, or while cells have its devices (a pause)."""

    def __init__(self, start: float, walltime: float, warning: float, *, pauses_count: bool) -> None:
        """`pauses_count`: the walltime runs on in a pause. It never does while the command is stopped."""
        self._start = start
        self._pauses_count = pauses_count
        self._lost = 0.0
        #: When its walltime ends, and when it is warned of that.
        self.deadlines = deadlines(start, walltime, warning)
        #: Since when it is stopped.
        self.stopped_at: float | None = None
        #: Since when cells have its devices, how often they had, and for how long in all.
        self.paused_at: float | None = None
        self.pauses = 0
        self.paused = 0.0

    @property
    def stands_still(self) -> bool:
        """Its walltime does not run."""
        return self.stopped_at is not None or (self.paused_at is not None and not self._pauses_count)

    def stop(self, now: float) -> None:
        """It is stopped from now on."""
        self.stopped_at = now

    def go_on(self, now: float) -> float:
        """It is not stopped any more; return for how many seconds it was."""
        assert self.stopped_at is not None
        seconds, self.stopped_at = now - self.stopped_at, None
        self._make_up(seconds)
        return seconds

    def pause(self, now: float) -> None:
        """Cells have its devices from now on."""
        self.pauses += 1
        self.paused_at = now

    def end_pause(self, now: float) -> float:
        """Its devices are back; return after how many seconds."""
        assert self.paused_at is not None
        seconds, self.paused_at = now - self.paused_at, None
        self.paused += seconds
        if self._pauses_count:
            self._lost += seconds
        else:
            self._make_up(seconds)
        return seconds

    def computed(self, now: float) -> float:
        """Return for how many seconds it has computed."""
        return now - self._start - self._lost - (0.0 if self.stopped_at is None else now - self.stopped_at)

    def _make_up(self, seconds: float) -> None:
        """The command could not compute for so long: that is no walltime of its own."""
        self._lost += seconds
        ends = self.deadlines
        self.deadlines = replace(ends, warn_at=ends.warn_at + seconds, end_at=ends.end_at + seconds)
