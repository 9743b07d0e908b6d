"""What is written down while notebooks and tasks run: stories of cells and tasks, and who computed where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.together.result import CellStory, Span, TaskStory, Together
from carrel.simulate.trace import TraceJob


@dataclass(slots=True)
class ActiveSession:
    """One session at work."""

    session: NotebookSession
    thinks: Sequence[float]
    name: str
    #: Which cell is the next, or the present one.
    at: int = 0
    #: When its user wanted that cell, and when it began to compute.
    ready: float = 0.0
    began: float | None = None
    #: True from the moment at which its user wants a cell until that ends.
    busy: bool = False


@dataclass(slots=True)
class Assigned:
    """One task that has its GPUs."""

    task: TraceJob
    name: str
    placed: float
    ran: float = 0.0
    pauses: int = 0


class UsageRecords:
    """Times after `until` are not written down."""

    def __init__(self, sessions: Sequence[NotebookSession], gpus: int, until: float) -> None:
        self.active_sessions = [
            ActiveSession(session, session.thinks, f"c{number:08d}") for number, session in enumerate(sessions)
        ]
        self.assigned: dict[int, Assigned] = {}
        self.task_pauses = self.cell_pauses = 0
        self._gpus = gpus
        self._until = until
        self._cells: list[CellStory] = []
        self._tasks: list[TaskStory] = []
        self._spans: list[Span] = []
        self._moving = 0.0
        self._last = 0.0

    def ask(self, active: ActiveSession, now: float) -> None:
        """The user of this session wants the next cell."""
        active.ready, active.began, active.busy = now, None, True

    def compute(self, who: str, devices: tuple[str, ...], start: float, end: float) -> None:
        """`who` computed on these devices."""
        end = min(end, self._until)
        if end > start:
            self._spans.append(Span(who, devices, start, end))
            self._last = max(self._last, end)

    def move(self, gpus: int, start: float, seconds: float) -> None:
        """State moved to or from so many devices."""
        self._moving += gpus * max(0.0, min(start + seconds, self._until) - start)

    def cell_over(self, active: ActiveSession, now: float) -> tuple[bool, float]:
        """The present cell is over; return whether another comes, and after how many seconds it does, or the session is shut."""
        self._cells.append(self._cell(active, now))
        active.busy = False
        active.at += 1
        more = active.at < len(active.thinks)
        return more, active.thinks[active.at] if more else active.session.linger

    def task_over(self, number: int, now: float) -> None:
        """A task ran to its end."""
        self._tasks.append(self._task(self.assigned.pop(number), now))

    def result(self, mode: str) -> Together:
        """Everything, with what goes on as far as it went."""
        until = self._last if self._until == float("inf") else self._until
        open_cells = [self._cell(active, None, until) for active in self.active_sessions if active.busy]
        open_tasks = [self._task(one, None, until) for one in self.assigned.values()]
        return Together(
            mode=mode,
            gpus=self._gpus,
            seconds=until,
            cells=(*self._cells, *open_cells),
            tasks=(*self._tasks, *open_tasks),
            spans=self._spans,
            moving=self._moving,
            task_pauses=self.task_pauses,
            cell_pauses=self.cell_pauses,
        )

    def _cell(self, active: ActiveSession, ended: float | None, until: float = 0.0) -> CellStory:
        cell = active.session.cells[active.at]
        seen = until if ended is None else ended
        began = active.began if active.began is None or active.began <= seen else None
        return CellStory(active.session.id, cell.id, active.session.gpus, cell.duration, active.ready, began, ended, seen)

    def _task(self, one: Assigned, ended: float | None, until: float = 0.0) -> TaskStory:
        seen = until if ended is None else ended
        task = one.task
        return TaskStory(task.id, task.gpus, task.duration, one.placed, ended, one.ran, one.pauses, seen)
