"""How a job's end appears in MLflow."""

from __future__ import annotations

from carrel.core.domain.job import JobState

_STATUS = {JobState.COMPLETED: "FINISHED", JobState.CANCELLED: "KILLED", JobState.PREEMPTED: "KILLED"}


def status_of(state: JobState) -> str:
    """MLflow's word for a job that ended: FINISHED, KILLED or FAILED."""
    return _STATUS.get(state, "FAILED")
