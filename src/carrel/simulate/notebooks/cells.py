"""Recorded cells of notebooks, from a lab or from a file, and the sessions that they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from carrel.core.domain.cells import RecordedCell
from carrel.core.domain.errors import Invalid
from carrel.simulate.traces.lines import Line, refuse_twice, rows_of

#: Columns that a file of cells must have.
COLUMNS = ("job_id", "num_gpu", "submit_time", "duration", "session")
#: Header of the files that a lab writes: the columns of the field's traces, and more.
HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval,session,user,granted,returned,gpu_type"
#: Seconds from the last cell of a session to its end where a file does not say when it ended.
LINGER = 3600.0
#: Seconds by which rounded moments may be in the wrong order.
_ROUNDED = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One recorded cell. Times are seconds after the beginning of the record."""

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
    #: When its session ended; None where nothing says so.
    session_ended: float | None = None

    @property
    def over(self) -> float:
        """When it was over, as far as that is known."""
        return self.granted + self.computed if self.returned is None else self.returned


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookSession:
    """One notebook: it opens with its first cell and is shut down `linger` after its last. Times are seconds."""

    name: str
    #: GPUs that each of its cells uses.
    gpus: int
    opens: float
    #: Before each cell, in which the session computes nothing: 0 before the first.
    thinks: Sequence[float]
    #: That each cell computes.
    computes: Sequence[float]
    linger: float = LINGER


def lab_cells(views: Iterable[RecordedCell], *, names: bool = True) -> Sequence[Cell]:
    """Return what a lab has recorded, in the order in which cells were asked for.

    A session is a process of a session of the lab's, such as a notebook's kernel, with one number of GPUs: 12.1, 12.2 and so on
    of job 12. Without `names` users and sessions are only told apart.
    """
    found = sorted(views, key=lambda view: (view.asked_at, view.broker, view.number))
    begin = found[0].asked_at if found else 0.0
    sessions: dict[tuple[int, str, int], str] = {}
    parts: dict[int, int] = {}
    users: dict[str, str] = {}
    cells = []
    for number, view in enumerate(found, start=1):
        which = (view.session, view.process, view.gpus)
        if which not in sessions:
            parts[view.session] = parts.get(view.session, 0) + 1
            sessions[which] = f"{view.session}.{parts[view.session]}" if names else f"session-{len(sessions) + 1}"
        users.setdefault(view.owner, _plain(view.owner) if names else f"user-{len(users) + 1}")
        cells.append(
            Cell(
                id=number,
                session=sessions[which],
                user=users[view.owner],
                gpus=view.gpus,
                asked=round(view.asked_at - begin, 3),
                granted=round(view.granted_at - begin, 3),
                returned=None if view.returned_at is None else round(view.returned_at - begin, 3),
                computed=round(view.computed, 3),
                gpu_type=_plain(view.gpu_type),
            )
        )
    return cells


def file_of(cells: Iterable[Cell]) -> Iterator[str]:
    """The lines of a file of cells, with its header, that `read_cells` reads."""
    yield HEADER
    for cell in cells:
        returned = "" if cell.returned is None else f"{cell.returned:.3f}"
        yield (
            f"{cell.id},{cell.gpus},{cell.asked:.3f},0,cell,{cell.computed:.3f},0,"
            f"{cell.session},{cell.user},{cell.granted:.3f},{returned},{cell.gpu_type}"
        )


def read_cells(path: Path) -> Sequence[Cell]:
    """Read a file of cells. Raises `Invalid` for anything that cannot be read.

    Columns beside `COLUMNS`: `user`; `granted` and `returned`, without which a cell is taken to have had its GPUs at once and
    without a pause; `session_ended`.
    """
    found = [(line, _cell(line, row)) for line, row in rows_of(path, COLUMNS)]
    if not found:
        raise Invalid(f"{path} has no cells.", remedy="Name a file with at least one.")
    refuse_twice("cell", ((line, cell.id) for line, cell in found))
    return [cell for _, cell in found]


def _cell(line: Line, row: Mapping[str, str]) -> Cell:
    asked, computed = line.positive("submit_time", row["submit_time"]), line.positive("duration", row["duration"])
    granted = line.positive("granted", row["granted"]) if "granted" in row else asked
    returned = line.positive("returned", row["returned"]) if row.get("returned") else None
    ended = line.positive("session_ended", row["session_ended"]) if row.get("session_ended") else None
    if not asked <= granted + _ROUNDED or (returned is not None and not granted <= returned + _ROUNDED):
        told = f"submit_time, granted and returned are {asked:g}, {granted:g} and {row.get('returned') or 'empty'}."
        raise line.wrong(told, "Write them in their order; returned is empty where nobody knows it.")
    if not row["session"]:
        raise line.wrong("session is empty.", "Name the session of each cell.")
    cell = Cell(
        id=line.whole("job_id", row["job_id"]),
        session=row["session"],
        user=row.get("user") or "user",
        gpus=line.whole("num_gpu", row["num_gpu"], least=1),
        asked=asked,
        granted=granted,
        returned=returned if "returned" in row else granted + computed,
        computed=computed,
        session_ended=ended,
    )
    if ended is not None and ended + _ROUNDED < cell.over:
        raise line.wrong(f"session_ended is {ended:g}, and this cell was over at {cell.over:g}.", "Leave it empty if unknown.")
    return cell


def sessions_of(cells: Iterable[Cell]) -> Sequence[NotebookSession]:
    """Return the sessions as their users would have run them if no cell had waited, in the order in which they open.

    Each cell comes its think time after the one before it. Think times are what people did; waits and pauses are what GPUs and
    rules were then, and a simulation makes its own. Raises `Invalid` for a session whose cells use different numbers of GPUs.
    """
    members: dict[tuple[str, str], list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.asked, cell.id)):
        members.setdefault((cell.user, cell.session), []).append(cell)
    sessions = []
    for (user, name), own in members.items():
        if len(widths := sorted({cell.gpus for cell in own})) > 1:
            raise Invalid(
                f'Cells of session "{name}" of {user} use {" and ".join(map(str, widths))} GPUs.',
                remedy="A session keeps one number of GPUs; give its parts different names.",
            )
        thinks, over = [], own[0].asked
        for cell in own:
            thinks.append(max(0.0, cell.asked - over))
            over = max(over, cell.over)
        ended = max((cell.session_ended for cell in own if cell.session_ended is not None), default=over + LINGER)
        sessions.append(
            NotebookSession(
                name=name,
                gpus=widths[0],
                opens=own[0].asked,
                thinks=thinks,
                computes=[cell.computed for cell in own],
                linger=max(0.0, ended - over),
            )
        )
    return sessions


def notes_of(cells: Sequence[Cell]) -> Sequence[str]:
    """What a reader of the result has to know about these cells."""
    unseen = sum(cell.returned is None for cell in cells)
    noted = [f"Cells whose end nobody saw, and which count until they were seen last: {unseen:,}."] if unseen else []
    return ["Waits and pauses are taken out of what was recorded.", *noted]


def _plain(text: str) -> str:
    """Without what separates values and lines in a file of cells."""
    return " ".join(text.replace(",", " ").split())
