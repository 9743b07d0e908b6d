"""A lab's own history as a trace: what was asked for, and how long it really ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from carrel.core.domain.errors import Invalid
from carrel.core.domain.job import Job
from carrel.core.domain.qos import JobKind
from carrel.simulate.trace import Trace, TraceJob
from carrel.wire import v1


def history_trace(jobs: Iterable[v1.JobView], name: str) -> Trace:
    """Return the jobs that ran and ended, from the first submission on.

    A job that was tried several times counts with its last attempt, if it comes with its attempts; one that was cancelled while
    it waited, that never started or that still runs is left out. Of a session only what it reserves is known: what its cells
    borrow is no part of its job. The notes say how many jobs each of this concerns. Raises `Invalid` when nothing is left.
    """
    recorded = sorted(jobs, key=lambda job: (job.submitted_at, job.id))
    whole = [(job, seconds) for job in recorded if (seconds := _ran(job)) is not None]
    if not whole:
        raise Invalid(
            f"In the history of {name} is no job that has ended ({len(recorded)} jobs in all).",
            remedy="Name a trace file.",
        )
    begin = whole[0][0].submitted_at.timestamp()
    return Trace(
        name=f"history of {name}",
        jobs=[_traced(job, seconds, job.submitted_at.timestamp() - begin) for job, seconds in whole],
        notes=_notes([job for job, _ in whole], left_out=len(recorded) - len(whole)),
    )


def recorded_trace(runs: Iterable[tuple[Job, float]], name: str) -> Trace:
    """The same of the lab's own jobs, each with the seconds that its last attempt ran. Not empty."""
    ordered = sorted(runs, key=lambda run: (run[0].submitted_at, run[0].id))
    begin = ordered[0][0].submitted_at
    return Trace(name=name, jobs=[_traced(job, seconds, job.submitted_at - begin) for job, seconds in ordered])


def _ran(job: v1.JobView) -> float | None:
    """Seconds of the last attempt: between attempts a job had nothing. None where it never ran, or has not ended."""
    times = job.attempts[-1] if isinstance(job, v1.JobDetail) else job
    if job.ended_at is None or times.started_at is None or times.ended_at is None:
        return None
    return max(0.0, (times.ended_at - times.started_at).total_seconds())


def _notes(whole: Sequence[v1.JobView], *, left_out: int) -> Sequence[str]:
    """What is not as it was in the lab."""
    told = (
        ("Jobs that never started or have not ended, left out", left_out),
        ("Jobs that were tried several times, of which only the last attempt counts", sum(job.attempt > 1 for job in whole)),
        (
            "Sessions, which hold what they reserved and not what their cells borrow",
            sum(job.kind == JobKind.SESSION for job in whole),
        ),
        ("Jobs that asked for a type of GPU and get any here", sum(job.resources.gpu_type is not None for job in whole)),
    )
    return [f"{what}: {many:,}." for what, many in told if many]


def _traced(job: v1.JobView | Job, seconds: float, submitted: float) -> TraceJob:
    kind, asked = JobKind(job.kind), job.resources
    return TraceJob(
        id=job.id,
        submitted=submitted,
        duration=seconds,
        gpus=asked.nodes * asked.gpus,
        cpus=0 if kind is JobKind.SESSION else asked.nodes * asked.cpus,
        memory=asked.nodes * asked.memory,
        time=asked.time,
        user=job.owner,
        account=job.account,
        name=job.name,
        qos=job.qos,
        kind=kind,
    )
