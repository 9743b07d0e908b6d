"""When sessions had GPUs, as a lab remembers it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCell:
    """One use of GPUs by a session, which mostly is one cell. Times are Unix seconds."""

    #: The node's broker that lent them, and the number that it gave the lease: without gaps, as long as its journal lasts.
    broker: str
    number: int
    #: The session.
    job_id: int
    attempt: int
    #: The process of the session whose lease it was: a kernel, or another program.
    process: str
    asked_at: float
    granted_at: float
    #: When they were given back; None: nobody saw it.
    returned_at: float | None
    #: Until when it had them at least.
    seen_at: float
    #: Seconds between those two in which it was not paused.
    computed: float
    gpus: int
    #: "" where that is not known, or they are of several types.
    gpu_type: str = ""
    #: Bytes of each, of the smallest; 0: not known.
    gpu_memory: int = 0
    #: How it ended, in the broker's words.
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCell:
    """A recorded cell, as it is read again."""

    #: Its place among all that are kept: later ones have larger numbers.
    id: int
    #: Subject of the session's owner.
    owner: str
    cell: RecordedCell
