"""Notebook sessions, made from cells that were recorded one by one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from carrel.core.domain.errors import Invalid
from carrel.simulate.trace import TraceJob

#: How long after its last cell a session is shut down when nothing is known about it: one hour.
LINGER = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookCell:
    """One cell that computes on GPUs."""

    #: Of its trace job.
    id: int
    #: Seconds after the beginning of the trace.
    submitted: float
    #: Seconds that it computes.
    duration: float

    @property
    def end(self) -> float:
        """When it ends if it neither waits nor swaps."""
        return self.submitted + self.duration


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSession:
    """One notebook from its opening to its end: it opens with its first cell and is shut down `linger` after its last."""

    #: Unique among the sessions of a week.
    id: int
    #: GPUs that each of its cells uses.
    gpus: int
    #: In order; one ends before the next begins.
    cells: Sequence[NotebookCell]
    #: Seconds.
    linger: float = LINGER

    def __post_init__(self) -> None:
        if not self.cells:
            raise Invalid(f"Session {self.id} has no cells.", remedy="A session opens with its first cell.")
        if self.gpus < 1:
            raise Invalid(f"Session {self.id} uses {self.gpus} GPUs.", remedy="Leave out what needs no GPU.")
        if self.linger < 0:
            raise Invalid(f"Session {self.id} is shut down {self.linger:g} s after its last cell.", remedy="Give 0 s or more.")
        for before, cell in zip(self.cells, self.cells[1:], strict=False):
            if cell.submitted < before.end:
                raise Invalid(
                    f"Cell {cell.id} of session {self.id} begins at {cell.submitted:g} s, before cell {before.id} ends "
                    f"at {before.end:g} s.",
                    remedy="Cells of one session run one after the other.",
                )

    @property
    def opens(self) -> float:
        """Seconds after the beginning of the trace."""
        return self.cells[0].submitted

    @property
    def gpu_seconds(self) -> float:
        """GPUs times seconds in which its cells compute."""
        return self.gpus * sum(cell.duration for cell in self.cells)

    @property
    def thinks(self) -> Sequence[float]:
        """Seconds before each cell in which the session computes nothing: 0 before the first."""
        gaps = (cell.submitted - before.end for before, cell in zip(self.cells, self.cells[1:], strict=False))
        return (0.0, *gaps)


class Join(StrEnum):
    """Which of several idle sessions a cell is taken to belong to."""

    #: The one that has been idle for the shortest time: fewest sessions, shortest think times.
    LATEST = "latest"
    #: The one that has been idle for the longest time: longest think times.
    LONGEST_IDLE = "longest idle"


def form_sessions(
    cells: Sequence[TraceJob], *, gap: float = 4 * 3600.0, linger: float = LINGER, join: Join = Join.LATEST
) -> Sequence[NotebookSession]:
    """Return sessions for cells of which nobody recorded the session, in the order in which they open.

    In order of submission, each cell joins a session of as many GPUs that is idle, and whose last cell ended at most `gap`
    seconds ago: of several the one that ended last (`join`). Where there is none it opens a session. So every cell is in
    one session, cells of a session never overlap, and no think time is longer than `gap`.

    This is an assumption, and what reservations cost depends on it. A larger `gap` gives fewer, longer sessions that idle
    more; `Join.LATEST` gives each cell the shortest think time that there is, which is kind to reservations;
    `Join.LONGEST_IDLE` is the opposite. The cells themselves, and so what modes cost that hold a GPU only while a cell
    runs, hardly depend on either. Compare both before believing a difference.

    Raises `Invalid` for a cell without GPUs, and for a negative `gap`.
    """
    if gap < 0:
        raise Invalid(f"The gap is {gap:g} s.", remedy="Give 0 s or more.")
    formed: list[tuple[int, list[NotebookCell]]] = []
    #: By GPUs: (end of the last cell, number of the session), in order.
    ends: dict[int, list[tuple[float, int]]] = {}
    for job in sorted(cells, key=lambda job: job.submitted):
        if job.gpus < 1:
            raise Invalid(f"Cell {job.id} uses {job.gpus} GPUs.", remedy="Leave out cells that need no GPU.")
        here = ends.setdefault(job.gpus, [])
        first = bisect_left(here, (job.submitted - gap, -1))
        behind = bisect_right(here, (job.submitted, inf))
        if first < behind:
            _, number = here.pop(behind - 1 if join is Join.LATEST else first)
        else:
            number = len(formed)
            formed.append((job.gpus, []))
        cell = NotebookCell(id=job.id, submitted=job.submitted, duration=job.duration)
        formed[number][1].append(cell)
        insort(here, (cell.end, number))
    return [
        NotebookSession(id=number, gpus=gpus, cells=tuple(members), linger=linger)
        for number, (gpus, members) in enumerate(formed)
    ]


def named_sessions(cells: Sequence[TraceJob], *, linger: float = LINGER) -> Sequence[NotebookSession]:
    """Return the sessions of a trace that names them: cells of one user with one name are one session.

    Raises `Invalid` for cells of one session that overlap or use different numbers of GPUs.
    """
    found: dict[tuple[str, str], list[TraceJob]] = {}
    for job in sorted(cells, key=lambda job: job.submitted):
        found.setdefault((job.user, job.name), []).append(job)
    sessions = []
    for number, ((user, name), jobs) in enumerate(found.items()):
        widths = sorted({job.gpus for job in jobs})
        if len(widths) > 1:
            raise Invalid(
                f'Cells of session "{name}" of {user} use {" and ".join(map(str, widths))} GPUs.',
                remedy="A session keeps one number of GPUs; give its parts different names.",
            )
        members = tuple(NotebookCell(id=job.id, submitted=job.submitted, duration=job.duration) for job in jobs)
        sessions.append(NotebookSession(id=number, gpus=widths[0], cells=members, linger=linger))
    return sessions
