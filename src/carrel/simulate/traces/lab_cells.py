"""Cells that a lab has recorded, with all that it knows of them: as a file of cells, and as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from carrel.core.domain.cells import RecordedCell
from carrel.simulate.trace import TraceJob
from carrel.simulate.traces.tiresias import COLUMNS

#: What a file says of such cells beside the columns of all cells. `granted` and `returned` are seconds after the beginning.
MORE = ("session", "user", "granted", "returned", "gpu_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCell:
    """One cell that a lab recorded. Times are seconds after the first cell was asked for."""

    id: int
    session: str
    user: str
    gpus: int
    asked: float
    granted: float
    #: When it gave its GPUs back; None: nobody saw it.
    returned: float | None
    #: Seconds that it computed: waits and pauses are no part of it. Where nobody saw its end, until it was last seen.
    computed: float
    gpu_type: str = ""

    @property
    def over(self) -> float:
        """When it was over, as far as that is known."""
        return self.granted + self.computed if self.returned is None else self.returned


def lab_cells(recorded: Iterable[tuple[str, RecordedCell]], *, names: bool = True) -> Sequence[LabCell]:
    """Return what a lab has recorded, with the owner of each, in the order in which cells were asked for.

    A session is a process of a session of the lab's, such as a notebook's kernel, with one number of GPUs: 12.1, 12.2 and so on
    of job 12. Without `names` users and sessions are only told apart.
    """
    found = sorted(recorded, key=lambda one: (one[1].asked_at, one[1].broker, one[1].number))
    begin = found[0][1].asked_at if found else 0.0
    sessions: dict[tuple[int, str, int], str] = {}
    parts: dict[int, int] = {}
    users: dict[str, str] = {}
    cells = []
    for number, (owner, cell) in enumerate(found, start=1):
        which = (cell.job_id, cell.process, cell.gpus)
        if which not in sessions:
            parts[cell.job_id] = parts.get(cell.job_id, 0) + 1
            sessions[which] = f"{cell.job_id}.{parts[cell.job_id]}" if names else f"session-{len(sessions) + 1}"
        users.setdefault(owner, _plain(owner) if names else f"user-{len(users) + 1}")
        cells.append(
            LabCell(
                id=number,
                session=sessions[which],
                user=users[owner],
                gpus=cell.gpus,
                asked=round(cell.asked_at - begin, 3),
                granted=round(cell.granted_at - begin, 3),
                returned=None if cell.returned_at is None else round(cell.returned_at - begin, 3),
                computed=round(cell.computed, 3),
                gpu_type=_plain(cell.gpu_type),
            )
        )
    return cells


def file_of(cells: Iterable[LabCell]) -> Iterator[str]:
    """The lines of a file of cells, with its header, that `read_cells` reads."""
    yield ",".join((*COLUMNS, *MORE))
    for cell in cells:
        returned = "" if cell.returned is None else f"{cell.returned:.3f}"
        yield (
            f"{cell.id},{cell.gpus},{cell.asked:.3f},0,cell,{cell.computed:.3f},0,"
            f"{cell.session},{cell.user},{cell.granted:.3f},{returned},{cell.gpu_type}"
        )


def without_waits(cells: Iterable[LabCell]) -> Sequence[TraceJob]:
    """The cells as their users would have run them if none had waited, by number: each its think time after the one before it.

    Think times are what people did; waits and pauses are what GPUs and rules were then, and a simulation makes its own.
    """
    #: Of each session: when its last cell was over, and when it would have been.
    last: dict[tuple[str, str], tuple[float, float]] = {}
    jobs = []
    for cell in sorted(cells, key=lambda cell: (cell.asked, cell.id)):
        whose = (cell.user, cell.session)
        over, ideal = last.get(whose, (cell.asked, cell.asked))
        job = TraceJob(
            id=cell.id,
            submitted=ideal + max(0.0, cell.asked - over),
            duration=cell.computed,
            gpus=cell.gpus,
            user=cell.user,
            name=cell.session,
        )
        last[whose] = max(over, cell.over), job.submitted + job.duration
        jobs.append(job)
    return sorted(jobs, key=lambda job: job.id)


def notes_of(cells: Sequence[LabCell]) -> Sequence[str]:
    """What a reader of the trace has to know about them."""
    notes = ["Each job is one cell of a notebook, named after its session. Waits and pauses are taken out of what was recorded."]
    unseen = sum(cell.returned is None for cell in cells)
    if unseen:
        notes.append(f"Cells whose end nobody saw, and which count until they were seen last: {unseen:,}.")
    return notes


def _plain(text: str) -> str:
    """Without what separates values and lines in a file of cells."""
    return " ".join(text.replace(",", " ").split())
