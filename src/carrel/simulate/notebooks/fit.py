"""What a week of notebooks looks like, in a few hundred numbers: measured from recorded sessions, and drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from carrel.core.domain.errors import Invalid
from carrel.simulate.notebooks.forming import NotebookSession
from carrel.simulate.quantiles import Quantiles, measure_quantiles

HOURS = 168
WEEK = HOURS * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """Sessions of one number of GPUs."""

    gpus: int
    #: Of all sessions, the share that has this many.
    share: float
    #: Cells in a session.
    cells: Quantiles
    #: Seconds before each cell but the first of its session.
    thinks: Quantiles
    #: Seconds that a cell computes.
    durations: Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A week of notebooks. What depends on what inside one session is lost: its cells are taken to be independent."""

    #: Sessions that open in each hour of the week, on average; the first is the hour in which the trace begins.
    openings: Sequence[float]
    #: By number of GPUs.
    widths: Sequence[Width]


def fit(sessions: Sequence[NotebookSession]) -> Fitted:
    """Measure recorded sessions. Several weeks are averaged; a week that was begun counts as one.

    Raises `Invalid` when there are no sessions.
    """
    if not sessions:
        raise Invalid("There are no sessions to measure.", remedy="Give one or more.")
    weeks = 1 + int(max(session.opens for session in sessions) // WEEK)
    opened = Counter(int(session.opens // 3600) % HOURS for session in sessions)
    by_gpus: dict[int, list[NotebookSession]] = {}
    for session in sessions:
        by_gpus.setdefault(session.gpus, []).append(session)
    return Fitted(
        openings=tuple(opened[hour] / weeks for hour in range(HOURS)),
        widths=tuple(_width(gpus, alike, len(sessions)) for gpus, alike in sorted(by_gpus.items())),
    )


def _width(gpus: int, sessions: Sequence[NotebookSession], of_all: int) -> Width:
    return Width(
        gpus=gpus,
        share=len(sessions) / of_all,
        cells=measure_quantiles([float(len(session.cells)) for session in sessions]),
        thinks=measure_quantiles([think for session in sessions for think in session.thinks[1:]]),
        durations=measure_quantiles([cell.duration for session in sessions for cell in session.cells]),
    )
