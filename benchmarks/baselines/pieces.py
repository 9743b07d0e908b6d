"""What happens to a job while it is simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from carrel.simulate.trace import Run, TraceJob


class Piece(NamedTuple):
    """One stretch of time for which a job had its GPUs without a break."""

    #: The job's.
    id: int
    gpus: int
    #: Seconds after the beginning of the trace.
    start: float
    end: float


class Course:
    """How it goes for one job: what it has run and what is left."""

    __slots__ = ("_move", "_pieces", "_since", "ends", "first", "job", "left", "preemptions", "ran")

    def __init__(self, job: TraceJob, pieces: Callable[[Piece], None] | None, move: float = 0.0) -> None:
        self._move = move
        self.job = job
        self._pieces = pieces
        self._since = 0.0
        #: Seconds that it had run and had left to run when it was last started or stopped.
        self.ran = 0.0
        self.left = job.duration
        #: When it ends unless it is stopped before.
        self.ends = float("inf")
        #: When it was started first.
        self.first: float | None = None
        self.preemptions = 0

    def start(self, now: float) -> None:
        """It has its GPUs."""
        self._since = now
        self.ends = now + self.left
        if self.first is None:
            self.first = now

    def ran_by(self, now: float) -> float:
        """Seconds that a job has run which runs now."""
        return self.ran + (now - self._since)

    def stop(self, now: float) -> None:
        """It has lost its GPUs and none of its work."""
        self._pause(now)
        self.left = max(self.ends - now, 0.0) + self._move
        self.ends = float("inf")
        self.preemptions += 1

    def finish(self, now: float) -> Run:
        """It has run to its end."""
        self._pause(now)
        job = self.job
        first = now if self.first is None else self.first
        return Run(job.id, job.user, job.gpus, job.submitted, first, now, self.ran, self.preemptions)

    def _pause(self, now: float) -> None:
        self.ran = self.ran_by(now)
        if self._pieces is not None:
            self._pieces(Piece(self.job.id, self.job.gpus, self._since, now))
