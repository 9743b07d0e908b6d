"""GPU cells of notebooks, as NotebookOS recorded them (github.com/ds2-lab/NotebookOS-Dashboard)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from carrel.simulate.trace import Trace, TraceJob
from carrel.simulate.traces.lines import Line, first_line, rows_of, trace_of
from carrel.simulate.traces.tiresias import COLUMNS, seconds_rows


def read_cells(path: Path) -> Trace:
    """Read one job for each cell that used GPUs, in seconds.

    The file has the header of a trace of Tiresias, so nothing can tell the two apart but who reads it. The model in it is a
    placeholder and is not used. With a further column `session`, and `user` if there is more than one, each cell is named after
    its session (`names_sessions`). Raises `Invalid` for whatever cannot be read.
    """
    if names_sessions(path):
        return trace_of(path, _in_sessions(path), notes=["Each job is one cell of a notebook, named after its session."])
    notes = ["Each job is one cell of a notebook. The file does not say which cells belong to one session, nor whose they are."]
    return trace_of(path, seconds_rows(path, name="cell"), notes=notes)


def names_sessions(path: Path) -> bool:
    """True when the file says which cells are one session."""
    return "session" in {name.strip() for name in first_line(path).split(",")}


def _in_sessions(path: Path) -> Sequence[tuple[Line, TraceJob]]:
    rows = [row for _, row in rows_of(path, (*COLUMNS, "session"))]
    jobs = seconds_rows(path)
    named = []
    for (line, job), row in zip(jobs, rows, strict=True):
        if not row["session"]:
            raise line.wrong("session is empty.", "Name the session of each cell, or leave the column out.")
        named.append((line, replace(job, name=row["session"], user=row.get("user") or job.user)))
    return named
