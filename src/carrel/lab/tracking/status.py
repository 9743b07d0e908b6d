"""How the end of a job, or the state of a sweep, appears in MLflow."""

from __future__ import annotations

from carrel.core.domain.job import JobState
from carrel.core.domain.sweep import SweepState

_STATUS = {JobState.COMPLETED: "FINISHED", JobState.CANCELLED: "KILLED", JobState.PREEMPTED: "KILLED"}


def status_of(state: JobState) -> str:
    """MLflow's word for a job that ended: FINISHED, KILLED or FAILED."""
    return _STATUS.get(state, "FAILED")


_STATUS_OF_SWEEP = {
    SweepState.RUNNING: "RUNNING",
    SweepState.COMPLETED: "FINISHED",
    SweepState.FAILED: "FAILED",
    SweepState.STOPPED: "KILLED",
}


def status_of_sweep(state: SweepState) -> str:
    """MLflow's word for a sweep in that state."""
    return _STATUS_OF_SWEEP[state]
