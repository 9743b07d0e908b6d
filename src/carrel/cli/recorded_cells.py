"""The cells that a lab has recorded, to be exported or simulated."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from carrel.cli.options import open_client
from carrel.core.domain.errors import Invalid
from carrel.core.domain.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from carrel.client import Client
    from carrel.core.domain.cells import RecordedCell
    from carrel.simulate.notebooks.cells import NotebookSession
    from carrel.simulate.trace import Trace

_SEE_ALL = ("operator", "admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the lab told."""

    #: As they came.
    views: Sequence[RecordedCell]
    #: True where they are everybody's.
    everybody: bool
    #: How many the lab did not hear of.
    missing: int


def read_cells_of(client: Client, *, last: int | None = None) -> Found:
    """Everybody's for operators and administrators, one's own for others; asked for within the `last` seconds."""
    since = None if last is None else max(0.0, time.time() - last)
    everybody = client.lab().caller.role in _SEE_ALL
    views: list[RecordedCell] = []
    missing = 0
    for page in client.cells("all" if everybody else "me", since=since):
        views += page.cells
        missing = page.missing or 0  # the last page says it
    return Found(views=views, everybody=everybody, missing=missing)


def lab_sessions(home: Path | None, *, last: int | None = None) -> tuple[Trace, Sequence[NotebookSession], int]:
    """What the lab has recorded: in its sessions, and how many GPUs the lab has.

    Raises `Invalid` when there is nothing.
    """
    from carrel.simulate.notebooks.cells import lab_cells, notes_of, sessions_of
    from carrel.simulate.trace import Trace

    with open_client(home) as client:
        found = read_cells_of(client, last=last)
        gpus = sum(len(node.devices) for node in client.nodes())
    whose = "The lab has recorded" if found.everybody else "The lab has recorded of your sessions"
    if not found.views:
        within = "" if last is None else f" and were asked for in the last {format_duration(last)}"
        raise Invalid(
            f"{whose} 0 cells with a GPU that are over{within}.",
            remedy="Run cells that use a GPU in notebooks, or name a file of cells.",
        )
    cells = lab_cells(found.views)
    trace = Trace(
        name="this lab" if found.everybody else "your own sessions",
        jobs=(),
        notes=(f"{whose} {len(cells):,} cells {_when(found.views)}.", *notes_of(cells), *_left_out(found)),
    )
    return trace, sessions_of(cells), gpus


def _left_out(found: Found) -> list[str]:
    notes = []
    if not found.everybody:
        notes.append("Nobody else's cells are here, so waits are shorter than they were.")
    if found.missing:
        notes.append(f"Cells that the lab did not hear of, left out: {found.missing:,}.")
    return notes


def _when(views: Sequence[RecordedCell]) -> str:
    days = [datetime.fromtimestamp(view.asked_at, UTC).date() for view in views]
    return f"from {min(days)} to {max(days)} (UTC)"
