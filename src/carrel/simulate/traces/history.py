"""A lab's own history as a trace: what was asked for, and how long it really ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from carrel.core.domain.errors import Invalid
from carrel.core.domain.qos import JobKind
from carrel.simulate.trace import Trace, TraceJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One job, as a lab remembers it. Times are Unix seconds."""

    id: int
    kind: JobKind
    owner: str
    account: str
    name: str
    qos: str
    gpus: int
    cpus: int
    #: Bytes.
    memory: int
    #: Walltime in seconds.
    time: int
    submitted_at: float
    #: Of the last attempt.
    started_at: float | None
    ended_at: float | None
    attempts: int = 1
    gpu_type: str | None = None


def history_trace(jobs: Iterable[Recorded], name: str) -> Trace:
    """Return the jobs that ran and ended, from the first submission on.

    A job that was tried several times counts with its last attempt; one that was cancelled while it waited, that never started
    or that still runs is left out. Of a session only what it reserves is known: what its cells borrow is no part of its job.
    The notes say how many jobs each of this concerns. Raises `Invalid` when nothing is left.
    """
    recorded = sorted(jobs, key=lambda job: (job.submitted_at, job.id))
    whole = [job for job in recorded if job.started_at is not None and job.ended_at is not None]
    if not whole:
        raise Invalid(
            f"In the history of {name} is no job that has ended ({len(recorded)} jobs in all).",
            remedy="Name a trace file, or leave it out for generated jobs.",
        )
    begin = whole[0].submitted_at
    return Trace(
        name=f"history of {name}",
        jobs=[_traced(job, begin) for job in whole],
        notes=_notes(whole, left_out=len(recorded) - len(whole)),
    )


def _notes(whole: Sequence[Recorded], *, left_out: int) -> Sequence[str]:
    """What is not as it was in the lab."""
    sessions = sum(job.kind is JobKind.SESSION for job in whole)
    again = sum(job.attempts > 1 for job in whole)
    typed = sum(job.gpu_type is not None for job in whole)
    told = (
        ("Jobs that never started or have not ended, left out", left_out),
        ("Jobs that were tried several times, of which only the last attempt counts", again),
        ("Sessions, which hold what they reserved and not what their cells borrow", sessions),
        ("Jobs that asked for a type of GPU and get any here", typed),
    )
    return [f"{what}: {many:,}." for what, many in told if many]


def _traced(job: Recorded, begin: float) -> TraceJob:
    started, ended = job.started_at or 0.0, job.ended_at or 0.0
    return TraceJob(
        id=job.id,
        submitted=job.submitted_at - begin,
        duration=max(0.0, ended - started),
        gpus=job.gpus,
        cpus=0 if job.kind is JobKind.SESSION else job.cpus,
        memory=job.memory,
        time=job.time,
        user=job.owner,
        account=job.account,
        name=job.name,
        qos=job.qos,
        kind=job.kind,
    )
