"""What Slurm's states mean here (squeue(1), JOB STATE CODES). Pure.

A state is one of three things: the job has not ended, it has, or it is unknown. A state that is not in the table is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from carrel.core.domain.job import JobState, Reason
from carrel.engines.slurm.limits import in_words
from carrel.engines.slurm.listing import SlurmJob

#: States of jobs that have not ended, and what they are to us. A job that is COMPLETING may still be writing.
_LIVE: dict[str, JobState] = {
    "PENDING": JobState.CONFIGURING,
    "CONFIGURING": JobState.CONFIGURING,
    "REQUEUED": JobState.CONFIGURING,
    "REQUEUE_FED": JobState.CONFIGURING,
    "REQUEUE_HOLD": JobState.CONFIGURING,
    "RESV_DEL_HOLD": JobState.CONFIGURING,
    "SPECIAL_EXIT": JobState.CONFIGURING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "STOPPED": JobState.SUSPENDED,
    "SUSPENDED": JobState.SUSPENDED,
}
_ENDED: dict[str, JobState] = {
    "BOOT_FAIL": JobState.NODE_FAIL,
    "CANCELLED": JobState.CANCELLED,
    "COMPLETED": JobState.COMPLETED,
    "DEADLINE": JobState.TIMEOUT,
    "FAILED": JobState.FAILED,
    "LAUNCH_FAILED": JobState.NODE_FAIL,
    "NODE_FAIL": JobState.NODE_FAIL,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "PREEMPTED": JobState.PREEMPTED,
    "RECONFIG_FAIL": JobState.NODE_FAIL,
    "REVOKED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
}
#: Every state with a meaning, for the documentation.
STATES: dict[str, JobState] = _LIVE | _ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmEnd:
    """How Slurm says that a job ended."""

    state: JobState
    reason: Reason
    exit_code: int | None = None
    signal: int | None = None
    #: True when it was not the job's own doing: another attempt may go well.
    retryable: bool = False

    @property
    def of_no_script(self) -> bool:
        """True when Slurm says that the script ended, and with exit code 0.

        Where nobody has claimed the attempt that was not its script, which ends so only after a claim: a controller that was
        killed has mixed it up with another job, or has lost it.
        """
        return self.reason.code in ("Completed", "NonZeroExitCode") and not self.exit_code and not self.signal


def has_ended(job: SlurmJob) -> bool:
    """True when Slurm says that the job ended; False when it has not, or when the state is a word that nobody knows."""
    return job.state in _ENDED


def is_live(job: SlurmJob) -> bool:
    """True when Slurm says that the job waits or runs; False when it has ended, or when the state is a word that nobody knows."""
    return job.state in _LIVE


def end_of(job: SlurmJob) -> SlurmEnd | None:
    """Return how the job ended, or None: it did not, or it is unknown."""
    state = _ENDED.get(job.state)
    if state is None:
        return None
    code, message = _reason(job)
    return SlurmEnd(
        state=state,
        reason=Reason(code=code, message=message),
        exit_code=job.exit_code if state in (JobState.FAILED, JobState.COMPLETED) and not job.signal else None,
        signal=job.signal or None,
        retryable=state in (JobState.NODE_FAIL, JobState.PREEMPTED) or job.reason in SITES_FAULT,
    )


def waits_for(job: SlurmJob, limit: str = "") -> str:
    """Return what there is to say about a job that has not ended, for its owner; `limit` says how much of what may be had."""
    if job.state == "SUSPENDED":
        return f"Slurm has suspended it (job {job.shown})."
    words = in_words(job.reason)
    reason = "" if job.reason in ("None", "") else f": {job.reason}{f' ({words})' if words else ''}"
    if _LIVE.get(job.state) is JobState.CONFIGURING:
        return f"It waits in Slurm as job {job.shown}, {job.state}{reason}.{f' {limit}' if limit else ''}"
    return f"It is job {job.shown} in Slurm, {job.state}{f' on {job.nodes}' if job.nodes else ''}{reason}."


#: Reasons of Slurm's (squeue(1), JOB REASON CODES) that say that the site failed and not the job.
SITES_FAULT = frozenset({"JobLaunchFailure", "SystemFailure", "Prolog", "PrologFailure", "NodeDown", "ReservationDeleted"})


def _reason(job: SlurmJob) -> tuple[str, str]:
    where = f" on {job.nodes}" if job.nodes else ""
    match job.state:
        case "TIMEOUT":
            return "TimeLimit", f"Slurm ended it{where} at its time limit (job {job.shown})."
        case "DEADLINE":
            return "Deadline", f"Slurm ended it at its deadline (job {job.shown})."
        case "OUT_OF_MEMORY":
            return "OutOfMemory", f"Slurm ended it{where}: it used more memory than it asked for (job {job.shown})."
        case "PREEMPTED":
            return "Preempted", f"Slurm ended it{where} to make room for a job of higher priority (job {job.shown})."
        case "NODE_FAIL":
            return "NodeLost", f"A node of it failed{where} (Slurm job {job.shown})."
        case "BOOT_FAIL" | "LAUNCH_FAILED" | "RECONFIG_FAIL":
            return "NodeLost", f"Its nodes could not be made ready{where}: {job.state} (Slurm job {job.shown})."
        case "CANCELLED":
            return "Cancelled", _cancelled(job)
        case "REVOKED":
            return "Cancelled", f"Slurm took it back: another cluster of the federation runs it (job {job.shown})."
        case "COMPLETED":
            return "Completed", f"Slurm says that it ended with exit code 0 (job {job.shown})."
    if job.reason == "BadConstraints":
        return "LaunchFailed", f"Slurm refused it: no node has what it asks for (job {job.shown})."
    if job.reason in SITES_FAULT and not job.exit_code and not job.signal:
        return "LaunchFailed", f"Slurm could not start it{where}: {job.reason} (job {job.shown})."
    if job.signal:
        return "RaisedSignal", f"Signal {job.signal} ended it{where} (Slurm job {job.shown})."
    if not job.exit_code:
        return "NonZeroExitCode", f"Slurm says that it failed{where}, with exit code 0 (job {job.shown})."
    return "NonZeroExitCode", f"It ended with exit code {job.exit_code}{where} (Slurm job {job.shown})."


def _cancelled(job: SlurmJob) -> str:
    if job.reason == "DependencyNeverSatisfied":
        return f"Slurm cancelled it: what it depends on can never be (job {job.shown})."
    nameless = job.cancelled_by.isdigit()
    by = f"the user with the number {job.cancelled_by}" if nameless else job.cancelled_by or "somebody"
    return f"Cancelled in Slurm by {by} (job {job.shown})."
