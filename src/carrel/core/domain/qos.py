"""Classes of service."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class JobKind(StrEnum):
    """What sort of work a job is."""

    TASK = "task"
    SESSION = "session"


class PreemptMode(StrEnum):
    """What happens to a job whose place is taken by one that goes before it (Slurm's PreemptMode)."""

    #: Nobody takes its place.
    NONE = "none"
    #: It gets its warning signal and time to write a checkpoint, then it goes back to the queue.
    REQUEUE = "requeue"
    #: It is stopped and goes on later with all its state; where that cannot be done, it is requeued.
    SUSPEND = "suspend"


class Lends(StrEnum):
    """To whom a running task gives its GPUs for a while."""

    #: To cells of notebooks: the task is paused, and goes on where it was.
    CELLS = "cells"
    #: To nobody: cells wait for its end.
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class QoS:
    """A class of service: which jobs it takes, for how long, how many, how urgent. None means no limit."""

    name: str
    kinds: frozenset[JobKind] = field(default_factory=lambda: frozenset(JobKind))
    #: Walltime for jobs that name none, in seconds.
    default_time: int = 24 * 3600
    #: Longest walltime, in seconds.
    max_time: int | None = None
    #: Jobs of one user that hold resources at the same time.
    max_jobs_per_user: int | None = None
    #: GPUs of one user that are held at the same time.
    max_gpus_per_user: int | None = None
    #: The same of everybody who works for one account.
    max_jobs_per_account: int | None = None
    max_gpus_per_account: int | None = None
    #: GPUs of everybody together that are held at the same time (Slurm's GrpTRES).
    max_gpus: int | None = None
    #: Seconds that a session may be idle (no cell runs, nobody is connected, no GPU work) before it is ended.
    idle_time: int | None = None
    #: Larger goes first. One point is worth `Snapshot.age_weight` seconds of waiting.
    priority: int = 0
    #: Classes of service whose jobs this one preempts.
    preempts: frozenset[str] = frozenset()
    #: How a job of this class is preempted.
    preempt_mode: PreemptMode = PreemptMode.NONE
    #: Seconds that a job of this class has run before it can be preempted (Slurm's PreemptExemptTime).
    preempt_exempt_time: int = 0
    #: Seconds between SIGTERM and SIGKILL for a job of this class that is requeued (Slurm's GraceTime).
    preempt_grace: int = 60
    #: To whom its running tasks give their GPUs for a while; those that cannot be interrupted (`--no-preempt`), to nobody.
    lends: Lends = Lends.CELLS
    #: Short jobs of it go first: each second of GPU time that a job should take counts as so many seconds that it came later.
    short_first: float = 0.0
