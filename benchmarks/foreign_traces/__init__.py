"""Readers of other groups' traces, beside the forms that `carrel simulate` reads."""

from __future__ import annotations

from pathlib import Path

from carrel.simulate.trace import Trace
from carrel.simulate.traces import FORMS as OWN
from carrel.simulate.traces import Forms
from carrel.simulate.traces import read_trace as read
from foreign_traces.muri import is_muri, read_muri, read_muri_iterations
from foreign_traces.openb import is_openb, read_openb
from foreign_traces.philly import is_philly, read_philly
from foreign_traces.philly_log import is_philly_log, read_philly_log
from foreign_traces.tiresias import is_tiresias, read_tiresias

__all__ = ["FORMS", "read_muri", "read_trace"]

#: By name; files are recognised in this order. Nothing shows that run times are to be made of iterations.
FORMS: Forms = {
    "muri": (read_muri, is_muri),
    "muri-iterations": (read_muri_iterations, lambda _path: False),
    "tiresias": (read_tiresias, is_tiresias),
    "philly": (read_philly, is_philly),
    "philly-log": (read_philly_log, is_philly_log),
    "openb": (read_openb, is_openb),
    **OWN,
}


def read_trace(path: Path, *, form: str | None = None) -> Trace:
    """Read a trace of the named form, or of the form that its beginning shows."""
    return read(path, form=form, forms=FORMS)
