"""GPU cells of notebooks, as NotebookOS recorded them (github.com/ds2-lab/NotebookOS-Dashboard), or as a lab does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lab_cells import LabCell, notes_of, without_waits
from carrel.simulate.traces.lines import Line, first_line, rows_of, trace_of
from carrel.simulate.traces.tiresias import COLUMNS, seconds_rows

#: Seconds by which rounded moments may be in the wrong order.
_ROUNDED = 0.01


def read_cells(path: Path) -> Trace:
    """Read one job for each cell that used GPUs, in seconds.

    The file has the header of a trace of Tiresias, so nothing can tell the two apart but who reads it. The model in it is a
    placeholder and is not used. With a further column `session`, and `user` if there is more than one, each cell is named after
    its session (`names_sessions`). With `granted` and `returned`, too, it is a lab's own file (`carrel gpus --cells`), of which
    waits are taken out. Raises `Invalid` for anything that cannot be read.
    """
    columns = _columns(path)
    if {"session", "granted", "returned"} <= columns:
        return _recorded_by_a_lab(path)
    if "session" in columns:
        return trace_of(path, _in_sessions(path), notes=["Each job is one cell of a notebook, named after its session."])
    notes = ["Each job is one cell of a notebook. The file does not say which cells belong to one session, nor whose they are."]
    return trace_of(path, seconds_rows(path, name="cell"), notes=notes)


def names_sessions(path: Path) -> bool:
    """True when the file says which cells are one session."""
    return "session" in _columns(path)


def _columns(path: Path) -> set[str]:
    return {name.strip() for name in first_line(path).split(",")}


def _in_sessions(path: Path) -> Sequence[tuple[Line, TraceJob]]:
    rows = [row for _, row in rows_of(path, (*COLUMNS, "session"))]
    jobs = seconds_rows(path)
    return [
        (line, replace(job, name=_session(line, row), user=row.get("user") or job.user))
        for (line, job), row in zip(jobs, rows, strict=True)
    ]


def _recorded_by_a_lab(path: Path) -> Trace:
    rows = [row for _, row in rows_of(path, (*COLUMNS, "session", "granted", "returned"))]
    found = [(line, _lab_cell(line, job, row)) for (line, job), row in zip(seconds_rows(path), rows, strict=True)]
    cells = [cell for _, cell in found]
    # One number for two cells is an error of `trace_of`, which needs a job for each line.
    places = [replace(cell, id=place) for place, cell in enumerate(cells)]
    jobs = [replace(job, id=cells[job.id].id) for job in without_waits(places)]
    in_order = sorted(zip([line for line, _ in found], jobs, strict=True), key=lambda pair: pair[1].submitted)
    return trace_of(path, in_order, notes=notes_of(cells))


def _lab_cell(line: Line, job: TraceJob, row: Mapping[str, str]) -> LabCell:
    granted = line.positive("granted", row["granted"])
    returned = line.positive("returned", row["returned"]) if row["returned"] else None
    if not job.submitted <= granted + _ROUNDED or (returned is not None and not granted <= returned + _ROUNDED):
        told = f"submit_time, granted and returned are {row['submit_time']}, {row['granted']} and {row['returned']}."
        raise line.wrong(told, "Write them in their order; returned is empty where nobody knows it.")
    return LabCell(
        id=job.id,
        session=_session(line, row),
        user=row.get("user") or job.user,
        gpus=job.gpus,
        asked=job.submitted,
        granted=granted,
        returned=returned,
        computed=job.duration,
    )


def _session(line: Line, row: Mapping[str, str]) -> str:
    if not row["session"]:
        raise line.wrong("session is empty.", "Name the session of each cell, or leave the column out.")
    return row["session"]
