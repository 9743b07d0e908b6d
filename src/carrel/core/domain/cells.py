"""When sessions had GPUs, as a lab remembers it."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.noun import derived, private


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One use of GPUs by a session, which mostly is one cell. Times are Unix seconds, on the wire too."""

    #: Its place among all that are kept: later ones have larger numbers.
    id: int = private(default=0)
    #: The node's broker that lent them, and the number that it gave the lease: without gaps, as long as its journal lasts.
    broker: str
    number: int
    #: Number of the session's job, and of its attempt.
    session: int
    attempt: int
    #: Subject of the session's owner.
    owner: str = derived(default="")
    #: The process of the session whose lease it was: a kernel, or another program.
    process: str
    asked_at: float
    granted_at: float
    #: When they were given back; None: nobody saw it.
    returned_at: float | None = None
    #: Until when it had them at least.
    seen_at: float
    #: Seconds between those two in which it was not paused.
    computed: float
    gpus: int
    #: UUIDs of them.
    devices: tuple[str, ...] = ()
    #: "" where that is not known, or they are of several types.
    gpu_type: str = ""
    #: Bytes of each, of the smallest; 0: not known.
    gpu_memory: int = 0
    #: How it ended, in the broker's words.
    outcome: str = ""
    #: For how much of the time in which it computed a kernel ran on them, in percent; None: not measured.
    busy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPage:
    """Some of the cells that a caller may see."""

    cells: tuple[RecordedCell, ...]
    #: How many the lab did not hear of, among everybody's; only on the last page.
    missing: int | None = None
    #: What to ask with as `after` for those that follow; None where there are no more.
    next: int | None = None
