"""The GPU-hours of a submission: the most that it may take, and what it took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from carrel.core.control.ports import AttemptRow
from carrel.core.domain.challenge import Cost
from carrel.core.domain.job import JobState
from carrel.core.domain.resources import Resources

#: Ends of attempts that are the team's. Others the lab has lost, given up or cancelled (`carrel.core.gpu_use.End`).
_TEAMS = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.OUT_OF_MEMORY, JobState.TIMEOUT})


def cost_of(programs: Sequence[Resources]) -> Cost:
    """Return the most that one submission takes of programs that run one after the other."""
    return Cost(
        gpus=max(one.total_gpus for one in programs),
        cpus=max(one.cpus * one.nodes for one in programs),
        seconds=sum(one.time for one in programs),
        gpu_hours=_hours(sum(one.total_gpus * one.time for one in programs)),
        cpu_hours=_hours(sum(one.cpus * one.nodes * one.time for one in programs)),
    )


def taken(attempts: Iterable[tuple[int, AttemptRow]], *, most: float) -> float:
    """Return the GPU-hours for which commands computed, on so many GPUs each, and never more than were announced.

    The time in which a command was prepared or stood still is left out, as in reports of use.
    """
    return min(most, _hours(sum(gpus * _computed(row) for gpus, row in attempts if row.state in _TEAMS)))


def _computed(row: AttemptRow) -> float:
    if row.started_at is None or row.ended_at is None:
        return 0.0
    return max(0.0, row.ended_at - row.started_at - row.suspended_seconds)


def _hours(seconds: float) -> float:
    """Hours in hundredths, rounded up: in larger steps than the clock, because teams see the sum."""
    return math.ceil(round(seconds / 36, 6)) / 100
