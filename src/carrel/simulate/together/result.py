"""What came out of notebooks and tasks on the same GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from carrel.simulate.notebooks.result import percentile


@dataclass(frozen=True, slots=True)
class CellStory:
    """How it went for one cell, as far as the simulation went. Seconds after the beginning."""

    session: int
    cell: int
    gpus: int
    duration: float
    #: When its user would have run it.
    ready: float
    #: When it began to compute, after all moves; None when it had not by the end of the simulation.
    began: float | None
    ended: float | None
    #: When the simulation ended.
    seen_until: float

    @property
    def wait(self) -> float:
        """Seconds before it computed; of one that still waits, so far."""
        return (self.seen_until if self.began is None else self.began) - self.ready

    @property
    def slowdown(self) -> float | None:
        """From the wish to the end over what it computes; None while it is not over."""
        return None if self.ended is None or not self.duration else (self.ended - self.ready) / self.duration


@dataclass(frozen=True, slots=True)
class TaskStory:
    """How it went for one task that had its GPUs."""

    task: int
    gpus: int
    #: Seconds that it takes.
    duration: float
    #: When it was given its GPUs, and when it was over; None when it was not by the end of the simulation.
    placed: float
    ended: float | None
    #: Seconds that it computed.
    ran: float
    pauses: int
    seen_until: float

    @property
    def had(self) -> float:
        """Seconds between being placed and its end."""
        return (self.seen_until if self.ended is None else self.ended) - self.placed

    @property
    def slowdown(self) -> float | None:
        """Time on its GPUs, with pauses and moves, over what it computes; None while it is not over."""
        return None if self.ended is None or not self.duration else self.had / self.duration


@dataclass(frozen=True, slots=True)
class Span:
    """Somebody computed on these devices without a break."""

    who: str
    devices: tuple[str, ...]
    start: float
    end: float

    @property
    def gpu_seconds(self) -> float:
        """GPUs times seconds."""
        return len(self.devices) * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """One mode."""

    mode: str
    gpus: int
    #: Seconds that were simulated.
    seconds: float
    cells: Sequence[CellStory]
    tasks: Sequence[TaskStory]
    #: Who computed where; sessions are `c…` and tasks `t…`.
    spans: Sequence[Span]
    #: GPU-seconds in which state moved and the GPU's next user waited for it.
    moving: float = 0.0
    #: Pauses of tasks, and of cells.
    task_pauses: int = 0
    cell_pauses: int = 0

    @property
    def cell_hours(self) -> float:
        """GPU-hours in which cells computed."""
        return sum(one.gpu_seconds for one in self.spans if one.who.startswith("c")) / 3600

    @property
    def task_hours(self) -> float:
        """GPU-hours in which tasks computed."""
        return sum(one.gpu_seconds for one in self.spans if one.who.startswith("t")) / 3600

    @property
    def move_hours(self) -> float:
        """GPU-hours in which state moved."""
        return self.moving / 3600

    @property
    def busy(self) -> float:
        """Share of all GPU time in which somebody computed."""
        return (self.cell_hours + self.task_hours) * 3600 / (self.gpus * self.seconds)

    def wait(self, share: float) -> float:
        """Seconds that at least this share of the cells' waits do not exceed."""
        return percentile([one.wait for one in self.cells], share)

    @property
    def cell_slowdown(self) -> float | None:
        """Mean over the cells that are over."""
        return _mean([one.slowdown for one in self.cells])

    @property
    def cell_stretch(self) -> float | None:
        """As `cell_slowdown`, but of all cells' time together: long cells weigh more."""
        over = [one for one in self.cells if one.ended is not None]
        total = sum(one.duration for one in over)
        return sum(one.ended - one.ready for one in over if one.ended is not None) / total if total else None

    @property
    def task_slowdown(self) -> float | None:
        """Mean over the tasks that are over."""
        return _mean([one.slowdown for one in self.tasks])

    @property
    def task_stretch(self) -> float | None:
        """Time for which tasks had their GPUs over the time in which they computed, of all together, also of those that go on."""
        ran = sum(one.ran for one in self.tasks)
        return sum(one.had for one in self.tasks) / ran if ran else None

    @property
    def pauses_each(self) -> float | None:
        """Mean pauses of a task that had its GPUs."""
        return self.task_pauses / len(self.tasks) if self.tasks else None

    def recovered(self, other: Together) -> float:
        """GPU-hours in which somebody computed, beyond those of `other`."""
        return self.cell_hours + self.task_hours - (other.cell_hours + other.task_hours)

    @property
    def cells_over(self) -> int:
        """Cells that ran to their end."""
        return sum(1 for one in self.cells if one.ended is not None)

    @property
    def tasks_over(self) -> int:
        """Tasks that ran to their end."""
        return sum(1 for one in self.tasks if one.ended is not None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
