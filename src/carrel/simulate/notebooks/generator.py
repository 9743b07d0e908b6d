"""Weeks of notebooks that never were, like one that was: seeded, so that everybody gets the same."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from carrel.core.domain.errors import Invalid
from carrel.core.domain.qos import JobKind
from carrel.simulate.notebooks.fit import HOURS, Fitted
from carrel.simulate.notebooks.fitted_week import FITTED_WEEK
from carrel.simulate.notebooks.forming import LINGER, NotebookCell, NotebookSession
from carrel.simulate.trace import Trace, TraceJob


def generate_sessions(
    seed: int, *, scale: float = 1.0, like: Fitted = FITTED_WEEK, linger: float = LINGER
) -> Sequence[NotebookSession]:
    """Return the sessions that open in one week, in the order in which they open.

    They run to their end, also after the week: cells are drawn independently of each other, so that a long session may get
    long cells, which a recording of one week does not show. So the GPU time of a recorded week is spread over a longer time,
    and its peak is lower here than it was.

    Sessions open at random moments (a Poisson process whose rate changes by the hour of the week), `scale` times as many as
    were measured. The same arguments give the same sessions.

    Raises `Invalid` when `scale` is not a number above 0.
    """
    if not 0 < scale < inf:
        raise Invalid(f"The scale is {scale:g}.", remedy="Give a number above 0; 1 is as many sessions as were measured.")
    random = Random(seed)
    weights = [width.share for width in like.widths]
    sessions: list[NotebookSession] = []
    cells = 0
    for opens in _openings(random, like, scale):
        width = random.choices(like.widths, weights)[0]
        members: list[NotebookCell] = []
        at = opens
        for _ in range(max(1, round(width.cells.draw(random)))):
            if members:
                at = members[-1].end + width.thinks.draw(random)
            members.append(NotebookCell(id=cells, submitted=at, duration=width.durations.draw(random)))
            cells += 1
        sessions.append(NotebookSession(id=len(sessions), gpus=width.gpus, cells=tuple(members), linger=linger))
    return sessions


def _openings(random: Random, like: Fitted, scale: float) -> Sequence[float]:
    """Seconds after the beginning of the week, in order."""
    found = []
    for hour in range(HOURS):
        rate = like.openings[hour] * scale
        at = random.expovariate(rate) if rate > 0 else 1.0
        while at < 1:
            found.append((hour + at) * 3600)
            at += random.expovariate(rate)
    return found


def generate_week(seed: int, *, scale: float = 1.0, like: Fitted = FITTED_WEEK) -> Trace:
    """Return the cells of `generate_sessions` as a trace; its names say which session each belongs to (`named_sessions`)."""
    jobs = [
        TraceJob(
            id=cell.id,
            submitted=cell.submitted,
            duration=cell.duration,
            gpus=session.gpus,
            user=f"user-{session.id}",
            name=f"session-{session.id}",
            kind=JobKind.SESSION,
        )
        for session in generate_sessions(seed, scale=scale, like=like)
        for cell in session.cells
    ]
    jobs.sort(key=lambda job: (job.submitted, job.id))
    return Trace(
        name=f"notebook week, seed {seed}, scale {scale:g}",
        jobs=tuple(jobs),
        notes=(
            "Generated from the summary statistics of a recorded week; which cells are one session was assumed there.",
            "Sessions open in the week and run to their end; their cells are independent of each other.",
            "Each session has a user of its own.",
        ),
    )
