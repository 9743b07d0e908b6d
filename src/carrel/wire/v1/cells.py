"""When cells of sessions had GPUs."""

from __future__ import annotations

from carrel.wire.v1.base import Response


class CellView(Response):
    """One use of GPUs by a session, which mostly is one cell. Times are Unix seconds."""

    #: Number of the session's job, and of its attempt.
    session: int
    attempt: int
    #: The process of the session whose use it was: a kernel, or another program.
    process: str
    owner: str
    #: The node's broker, and its number of the use.
    broker: str
    number: int
    asked_at: float
    granted_at: float
    #: Absent: nobody saw it.
    returned_at: float | None = None
    #: Until when it had the GPUs at least.
    seen_at: float
    #: Seconds without pauses.
    computed: float
    gpus: int
    #: "" where it is not known, or there are several.
    gpu_type: str = ""
    #: Bytes of each, of the smallest; 0: not known.
    gpu_memory: int = 0
    outcome: str = ""


class CellPageView(Response):
    """Some of the cells that a caller may see."""

    cells: list[CellView]
    #: How many the lab did not hear of, among everybody's; only on the last page.
    missing: int | None = None
    #: What to ask with as `after` for those that follow; None where there are no more.
    next: int | None = None
