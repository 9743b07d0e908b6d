"""What came out of a simulation, one entry a job; everything that is reported is computed from this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """How it went for one job. Times are seconds after the beginning of the trace."""

    id: int
    user: str
    gpus: int
    submitted: float
    #: When it first got what it asked for.
    start: float
    end: float
    #: Seconds for which it had its GPUs, all pieces together; more than its duration when work was lost.
    ran: float
    #: How often it was stopped or suspended before its end.
    preemptions: int = 0

    @property
    def wait(self) -> float:
        """Seconds in line: before its first start, and after each time that it was stopped."""
        if not self.preemptions:
            return self.start - self.submitted
        return max(0.0, self.completion - self.ran)

    @property
    def completion(self) -> float:
        """Seconds from submission to end: the field's JCT."""
        return self.end - self.submitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One trace under one policy."""

    policy: str
    trace: str
    #: GPUs that there were.
    gpus: int
    #: In the order of the trace.
    runs: Sequence[Run]
    #: Jobs that could never start (too large, not admitted), with the reason.
    refused: Sequence[tuple[int, str]] = ()
