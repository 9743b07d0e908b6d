"""GPU cells of notebooks, as NotebookOS recorded them (github.com/ds2-lab/NotebookOS-Dashboard)."""

from __future__ import annotations

from pathlib import Path

from carrel.simulate.trace import Trace
from carrel.simulate.traces.lines import trace_of
from carrel.simulate.traces.tiresias import seconds_rows


def read_cells(path: Path) -> Trace:
    """Read one job for each cell that used GPUs, in seconds.

    The file has the header of a trace of Tiresias, so nothing can tell the two apart but who reads it. The model in it is a
    placeholder and is not used. Raises `Invalid` for whatever cannot be read.
    """
    notes = ["Each job is one cell of a notebook. The file does not say which cells belong to one session, nor whose they are."]
    return trace_of(path, seconds_rows(path, name="cell"), notes=notes)
